"""The API of the Kubernetes cluster that this pod runs in, asked with the pod's own account.

Source: kubernetes.io/docs, "Accessing the Kubernetes API from a Pod": KUBERNETES_SERVICE_HOST and _PORT, and the files below
/var/run/secrets/kubernetes.io/serviceaccount (token, ca.crt).
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from torchtune_sys.errors import UserError
from torchtune_sys.model import codec
from torchtune_sys.model.numbers import natural

_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
_TIMEOUT_S = 10.0
_ANSWER_AT_MOST = 4 << 20
_PORT_AT_MOST = 65535
_NODES = "/api/v1/nodes"
_NAMES_ALONE = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1, application/json"
_MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


class _Limited(ssl.SSLSocket):
    """A connection that ends when the whole answer takes too long, or is too long: a timeout by itself counts anew with each byte, and chunks,
    headers and answers before the answer are read without a limit by http.client."""

    until = float("inf")
    taken = 0

    def recv_into(self, *where: Any, **how: Any) -> int:
        left = self.until - time.monotonic()
        if left <= 0:
            raise TimeoutError("the answer takes too long")
        if self.taken > _ANSWER_AT_MOST:
            raise OSError("the answer is too long")
        self.settimeout(min(left, _TIMEOUT_S))
        found = super().recv_into(*where, **how)
        self.taken += found
        return found


class Cluster:
    """Raises UserError where this is not a pod, or its account has no token."""

    def __init__(self, env: Mapping[str, str], account: str = _ACCOUNT) -> None:
        self._account = account
        self._host, port = env.get("KUBERNETES_SERVICE_HOST", ""), natural(env.get("KUBERNETES_SERVICE_PORT", "443"), 5)
        if not self._host or port is None or port > _PORT_AT_MOST or not os.path.isfile(f"{self._account}/token"):
            raise UserError(
                "--act: this is no pod whose account may ask the cluster", "generate kubernetes daemonset --act makes one"
            )
        self._port = port

    def node(self, name: str) -> dict[str, Any]:
        """Return the node as the cluster has it. Raises UserError."""
        return self._ask("GET", _path(name))

    def count(self, label: str = "") -> int:
        """Return how many nodes there are; with ``label`` those that have it. Raises UserError, also where the answer tells no number."""
        # With a selector the API sends all that match, else one and how many more there are (meta/v1 ListMeta.remainingItemCount).
        words = f"labelSelector={quote(label, safe='')}" if label else "limit=1"
        found = self._ask("GET", f"{_NODES}?{words}", accept=_NAMES_ALONE)
        items, metadata = found.get("items"), found.get("metadata")
        left = metadata.get("remainingItemCount", 0) if isinstance(metadata, dict) else None
        is_cut = isinstance(metadata, dict) and bool(metadata.get("continue")) and not left
        if not isinstance(items, list) or not isinstance(left, int) or left < 0 or is_cut:
            raise UserError("the cluster did not say how many nodes there are", "")
        return len(items) + left

    def patch_status(self, name: str, patch: Mapping[str, Any]) -> None:
        """Patch the node's status. Raises UserError."""
        self._ask("PATCH", f"{_path(name)}/status", patch, STRATEGIC)

    def patch(self, name: str, patch: Mapping[str, Any]) -> None:
        """Patch the node. Raises UserError, also where the node changed since it was asked for."""
        self._ask("PATCH", _path(name), patch, _MERGE)

    def _ask(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, form: str = "", accept: str = "application/json"
    ) -> dict[str, Any]:
        try:
            with open(f"{self._account}/token", encoding="ascii") as file:
                token = file.read().strip()
            if not token.isprintable():
                raise ValueError("its token is none")  # http.client would quote it
            headers = {"Authorization": f"Bearer {token}", "Accept": accept}
            # Not create_default_context(): it writes the connection's keys to the file that SSLKEYLOGFILE names.
            trusted = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            trusted.load_verify_locations(f"{self._account}/ca.crt")
            trusted.sslsocket_class = _Limited
            link = http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S, context=trusted)
            try:
                link.connect()
                if isinstance(link.sock, _Limited):
                    link.sock.until = time.monotonic() + _TIMEOUT_S
                data = None if body is None else json.dumps(body).encode()
                link.request(method, path, data, {**headers, **({"Content-Type": form} if form else {})})
                answer = link.getresponse()
                text = answer.read(_ANSWER_AT_MOST)
            finally:
                link.close()
            found = codec.loads(text) if text else {}
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise UserError(
                f"the cluster did not answer {method} {path}: {error}", "look at the pod's account and network"
            ) from None
        if answer.status >= 300 or not isinstance(found, dict):
            words = found.get("message", "") if isinstance(found, dict) else ""
            todo = "the account may get, list and patch nodes, and patch nodes/status" if answer.status == 403 else ""
            raise UserError(f"the cluster refused {method} {path}: {answer.status} {words}".rstrip(), todo)
        return found


def _path(name: str) -> str:
    return f"{_NODES}/{quote(name, safe='')}"
