"""An HTTP server that answers kubectl as a Kubernetes API server would: one node and its pods, as far as get, annotate, drain and uncordon ask.

It is no Kubernetes: there is no scheduler and no kubelet, an evicted pod is gone at once, and one with a disruption budget stays.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

NODE = "gpu1"
RESOURCES = {
    "/api/v1": (("nodes", "Node", False), ("pods", "Pod", True), ("pods/eviction", "Eviction", True)),
    "/apis/apps/v1": (("daemonsets", "DaemonSet", True),),
    "/apis/policy/v1": (("poddisruptionbudgets", "PodDisruptionBudget", True),),
}
"""Of each group and version: the resources, their kinds, and whether they lie in a namespace."""


def pod(name: str, *, owner: str = "ReplicaSet", empty_dir: bool = False, budget: bool = False) -> dict[str, Any]:
    """One that runs on the node; with ``budget`` nobody may evict it now."""
    owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "owner", "uid": "owner", "controller": True}] if owner else []
    labels = {"budget": "spent"} if budget else {}
    meta = {"name": name, "namespace": "jobs", "uid": name, "ownerReferences": owners, "labels": labels}
    volumes = [{"name": "shm", "emptyDir": {"medium": "Memory"}}] if empty_dir else []
    spec = {"nodeName": NODE, "containers": [{"name": "c", "image": "i"}], "volumes": volumes}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Running"}}


@dataclass
class Cluster:
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    node: dict[str, Any] = field(
        default_factory=lambda: {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": NODE, "uid": "node", "annotations": {}, "resourceVersion": "1"},
            "spec": {},
            "status": {},
        }
    )
    asked: list[str] = field(default_factory=list)
    """What was changed: cordon, evict NAME …"""

    @property
    def takes_pods(self) -> bool:
        return not self.node["spec"].get("unschedulable", False)

    def get(self, path: str) -> tuple[int, Any]:
        if path in RESOURCES:
            return 200, _resources(path)
        if path == f"/api/v1/nodes/{NODE}":
            return 200, self.node
        if path == "/api/v1/pods":
            return 200, {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": list(self.pods.values())}
        if found := re.fullmatch(r"/api/v1/namespaces/jobs/pods/([^/]+)", path):
            return (200, self.pods[found[1]]) if found[1] in self.pods else _status(404, "NotFound")
        if path == "/apis/apps/v1/namespaces/jobs/daemonsets/owner":
            meta = {"name": "owner", "namespace": "jobs", "uid": "owner"}
            return 200, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": {}}
        return _ABOUT_ITSELF.get(path) or _status(404, "NotFound")

    def patch(self, path: str, change: dict[str, Any]) -> tuple[int, Any]:
        if path != f"/api/v1/nodes/{NODE}":
            return _status(404, "NotFound")
        _merge(self.node, change)
        self.asked.append(json.dumps(change, sort_keys=True))
        return 200, self.node

    def post(self, path: str) -> tuple[int, Any]:
        found = re.fullmatch(r"/api/v1/namespaces/jobs/pods/([^/]+)/eviction", path)
        if not found or found[1] not in self.pods:
            return _status(404, "NotFound")
        if self.pods[found[1]]["metadata"]["labels"]:
            return _status(429, "TooManyRequests")
        del self.pods[found[1]]
        self.asked.append(f"evict {found[1]}")
        return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success"}


_VERSION = {"major": "1", "minor": "32", "gitVersion": "v1.32.4", "platform": "linux/amd64"}
_GROUPS = [
    {
        "name": path.split("/")[2],
        "versions": [{"groupVersion": f"{path.split('/')[2]}/v1", "version": "v1"}],
        "preferredVersion": {"groupVersion": f"{path.split('/')[2]}/v1", "version": "v1"},
    }
    for path in RESOURCES
    if path.startswith("/apis/")
]
_ABOUT_ITSELF: dict[str, tuple[int, Any]] = {
    "/version": (200, _VERSION),
    "/api": (200, {"kind": "APIVersions", "versions": ["v1"]}),
    "/apis": (200, {"kind": "APIGroupList", "apiVersion": "v1", "groups": _GROUPS}),
}


def _resources(path: str) -> dict[str, Any]:
    verbs = ["create", "delete", "get", "list", "patch", "update", "watch"]
    rows = [
        {"name": name, "singularName": "", "namespaced": inside, "kind": kind, "verbs": verbs, **_of_group(name)}
        for name, kind, inside in RESOURCES[path]
    ]
    group = path.removeprefix("/apis/").removeprefix("/api/")
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": group, "resources": rows}


def _of_group(name: str) -> dict[str, str]:
    return {"group": "policy", "version": "v1"} if name == "pods/eviction" else {}


def _status(code: int, reason: str) -> tuple[int, Any]:
    return code, {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": reason, "code": code, "message": reason}


def _merge(old: dict[str, Any], change: dict[str, Any]) -> None:
    """A merge patch (RFC 7386)."""
    for key, value in change.items():
        if value is None:
            old.pop(key, None)
        elif isinstance(value, dict):
            _merge(old.setdefault(key, {}), value)
        else:
            old[key] = value


@contextmanager
def cluster(folder: Path, pods: Sequence[dict[str, Any]]) -> Iterator[tuple[Cluster, Path]]:
    """One that answers, and the file that tells kubectl of it."""
    made = Cluster({one["metadata"]["name"]: one for one in pods})

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer(*made.get(self.path.partition("?")[0]))

        def do_PATCH(self) -> None:
            self._answer(*made.patch(self.path.partition("?")[0], json.loads(self._body())))

        def do_POST(self) -> None:
            self._body()
            self._answer(*made.post(self.path.partition("?")[0]))

        def _body(self) -> bytes:
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))

        def _answer(self, code: int, what: Any) -> None:
            text = json.dumps(what).encode()
            self.send_response(code)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_words: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "prod", "context": {"cluster": "c", "user": "u"}}],
    }
    place = folder / "kubeconfig"
    place.write_text(json.dumps(config))
    try:
        yield made, place
    finally:
        server.shutdown()
        server.server_close()
