"""Condition and taint of a Kubernetes node: a real HTTPS server is asked for no more than the rights allow, and what it answers costs little."""

from __future__ import annotations

import contextlib
import http.server
import json
import shutil
import socket
import ssl
import subprocess
import threading
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import msgspec
import pytest
from made_nodes import OTHER, OURS, node, verdict

from torchtune_sys.cli.node_patch import applied
from torchtune_sys.errors import UserError
from torchtune_sys.host import cluster as cluster_module
from torchtune_sys.host.cluster import Cluster
from torchtune_sys.model.preflight import Go, Preflight
from torchtune_sys.preflight.drain_limit import parse_taint_limit
from torchtune_sys.render import node_patch

_OK, _BLOCK = b"HTTP/1.1 200 OK\r\n", b"x" * (1 << 20)
TOKEN = "eyJhbGciOiJSUzI1NiJ9.c2VjcmV0LXRva2Vu.c2lnbmF0dXJl"
ANSWERS = {
    "a chunk of less than nothing": (_OK + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", _BLOCK),
    "chunks": (_OK + b"Transfer-Encoding: chunked\r\n\r\n", (b"1000\r\n" + b"[" * 4096 + b"\r\n") * 256),
    "trailers": (_OK + b"Transfer-Encoding: chunked\r\n\r\n0\r\n", (b"a: " + b"b" * 1000 + b"\r\n") * 1000),
    "answers before the answer": (b"", (b"HTTP/1.1 100 Continue\r\na: " + b"b" * 1000 + b"\r\n\r\n") * 1000),
    "HTTP/1.0 without a length": (b"HTTP/1.0 200 OK\r\n\r\n", _BLOCK),
    "a length of less than nothing": (_OK + b"Content-Length: -5\r\n\r\n", _BLOCK),
    "a length of 5,000 digits": (_OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n", _BLOCK),
    "no HTTP": (b"", _BLOCK),
    "a redirect": (b"HTTP/1.1 307 T\r\nLocation: https://127.0.0.1:1/\r\nContent-Length: 0\r\n\r\n", b""),
    "brackets": (_OK + b"\r\n" + b"[" * 400_000, b""),
}


class Api:
    """A cluster's nodes, as its API has them: merge patches, versions, labels as selectors, and counting without sending."""

    def __init__(self, names: Iterable[str]) -> None:
        self.nodes: dict[str, dict[str, Any]] = {name: {"metadata": {"name": name, "resourceVersion": "7"}} for name in names}
        self.asked: list[Any] = []
        self.pause_s = 0.0
        """Between two bytes of an answer."""
        self.answers: dict[str, int] = {}
        """The status that it answers by method and the begin of the path."""
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        for what, status in self.answers.items():
            if f"{method} {path}".startswith(what):
                return status, {"message": "forbidden"}
        place, _, words = path.partition("?")
        name, _, part = place.removeprefix("/api/v1/nodes").strip("/").partition("/")
        with self._lock:
            if not name:
                return 200, self._list(dict(pair.split("=", 1) for pair in unquote(words).split("&")))
            found = self.nodes.setdefault(unquote(name), node(OTHER))
            return (200, found) if method == "GET" else self._patched(found, body, is_status=part == "status")

    def _list(self, words: dict[str, str]) -> Any:
        label = words.get("labelSelector")
        items = [each for each in self.nodes.values() if label is None or label in each["metadata"].get("labels", {})]
        most = int(words.get("limit", len(items)))
        left = {"continue": "x", "remainingItemCount": len(items) - most} if len(items) > most else {}
        return {"kind": "PartialObjectMetadataList", "metadata": left, "items": items[:most]}

    def _patched(self, found: dict[str, Any], body: Any, is_status: bool) -> tuple[int, Any]:
        if is_status:
            found["status"] = body["status"]
            return 200, found
        meta = found["metadata"]
        if body["metadata"].get("resourceVersion", meta["resourceVersion"]) != meta["resourceVersion"]:
            return 409, {"message": "the object has been modified"}
        labels = {**meta.get("labels", {}), **body["metadata"].get("labels", {})}
        meta["labels"] = {key: value for key, value in labels.items() if value is not None}
        meta["resourceVersion"] = str(int(meta["resourceVersion"]) + 1)
        found["spec"] = body["spec"]
        return 200, found

    def tainted(self) -> list[str]:
        return [name for name, each in self.nodes.items() if node_patch.is_tainted(each)]


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[Cluster, Api]]:
    """Behind HTTPS, with a certificate of its own authority."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    account = tmp_path / "account"
    account.mkdir()
    (account / "token").write_text("secret-token\n")
    key, certificate = tmp_path / "key", account / "ca.crt"
    words = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
        "-days",
        "2",
    ]
    subprocess.run([*words, "-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    made = Api(())

    class Answers(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            text = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = json.loads(text) if text else None
            made.asked.append((self.command, self.path, self.headers.get("Content-Type"), body, self.headers["Authorization"]))
            status, told = made.answer(self.command, self.path, body)
            self.send_response(status)
            self.end_headers()
            for sign in json.dumps(told):
                self.wfile.write(sign.encode())
                time.sleep(made.pause_s)

        do_GET = do_PATCH = _answer

        def log_message(self, *_words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.handle_error = lambda *_words: None  # type: ignore[method-assign]  # a client that refuses us hangs up
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_address[1])}
    try:
        yield Cluster(env, str(account)), made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def of(name: str, go: Go = Go.NO_GO) -> Preflight:
    found = verdict(go, *(["gpu-lost"] if go is Go.NO_GO else []))
    return msgspec.structs.replace(found, nodes=(msgspec.structs.replace(found.nodes[0], node=name),))


def test_no_more_nodes_are_tainted_than_may_be(api: tuple[Cluster, Api]) -> None:
    cluster, made = api
    made.nodes.update(Api(f"n{number}" for number in range(30)).nodes)
    limit = parse_taint_limit("10%")
    told = [applied(of(f"n{number}"), cluster, limit) for number in range(5)]
    assert made.tainted() == ["n0", "n1", "n2"]
    assert told[:3] == ["", "", ""]
    assert told[3].startswith("3 of 30 nodes have the taint, the limit of --max-tainted 10%")
    assert made.nodes["n3"]["status"]["conditions"][0]["message"].startswith("not tainted: 3 of 30")
    assert made.nodes["n3"]["status"]["conditions"][0]["status"] == "False"
    assert applied(of("n0"), cluster, limit) == "", "who bears it already stays so"
    assert applied(of("n1", Go.GO), cluster, limit) == ""
    assert applied(of("n4"), cluster, limit) == ""
    assert made.tainted() == ["n0", "n2", "n4"]


def test_nodes_that_are_judged_in_the_same_moment_do_not_pass_the_limit(api: tuple[Cluster, Api]) -> None:
    """The first counts all come before any taint: each that tainted itself sees the others, and takes it back."""
    cluster, made = api
    made.nodes.update(Api(f"n{number}" for number in range(12)).nodes)
    together = threading.Barrier(12)

    class Hasty(Cluster):
        def patch(self, name: str, patch: Any) -> None:
            if patch["spec"]["taints"]:
                together.wait(20)
            super().patch(name, patch)

    cluster.__class__ = Hasty
    with ThreadPoolExecutor(12) as pool:
        told = [*pool.map(lambda name: applied(of(name), cluster, parse_taint_limit("2")), [*made.nodes])]
    assert len(made.tainted()) <= 2
    assert sum(not each for each in told) == len(made.tainted())


@pytest.mark.parametrize("refused", ["GET /api/v1/nodes?limit", "GET /api/v1/nodes?label"])
def test_where_nobody_can_count_nothing_is_tainted(api: tuple[Cluster, Api], refused: str) -> None:
    cluster, made = api
    made.nodes.update(Api(["n1", "n2"]).nodes)
    made.answers[refused] = 403
    assert "cannot be determined" in applied(of("n1"), cluster, parse_taint_limit("2"))
    assert made.tainted() == []
    assert made.nodes["n1"]["status"]["conditions"][0]["status"] == "False"


def test_what_is_asked_of_the_cluster(api: tuple[Cluster, Api]) -> None:
    cluster, made = api
    assert cluster.node("n/1") == node(OTHER)
    made.nodes["n1"] = node(OTHER)
    assert applied(of("n1"), cluster, parse_taint_limit("4")) == ""
    label = f"/api/v1/nodes?labelSelector={quote(node_patch.LABEL, safe='')}"
    assert [each[:3] for each in made.asked] == [
        ("GET", "/api/v1/nodes/n%2F1", None),
        ("GET", "/api/v1/nodes/n1", None),
        ("GET", label, None),
        ("GET", "/api/v1/nodes?limit=1", None),
        ("PATCH", "/api/v1/nodes/n1", "application/merge-patch+json"),
        ("GET", label, None),
        ("GET", "/api/v1/nodes?limit=1", None),
        ("PATCH", "/api/v1/nodes/n1/status", "application/strategic-merge-patch+json"),
    ]
    assert {each[4] for each in made.asked} == {"Bearer secret-token"}
    assert made.asked[4][3] == {
        "metadata": {"resourceVersion": "7", "labels": {node_patch.LABEL: "true"}},
        "spec": {"taints": [OTHER, OURS]},
    }
    made.answers["PATCH"] = 409
    with pytest.raises(UserError, match="409 forbidden"):
        applied(of("n2"), cluster, parse_taint_limit("4"))


def test_an_answer_of_a_byte_at_a_time_is_not_waited_for(api: tuple[Cluster, Api], monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, made = api
    monkeypatch.setattr(cluster_module, "_TIMEOUT_S", 1.0)
    made.nodes["n1"] = node(OTHER)
    made.pause_s = 0.2
    begun = time.monotonic()
    with pytest.raises(UserError, match="did not answer"):
        cluster.node("n1")
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize("form", ANSWERS)
def test_an_answer_without_an_end_takes_neither_time_nor_memory(
    api: tuple[Cluster, Api], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str
) -> None:
    """http.client takes a chunk of length -1 for *all that comes*, and a connection from which there is always something to take never waits."""
    cluster, _made = api
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "account" / "ca.crt", tmp_path / "key")
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with contextlib.suppress(OSError), context.wrap_socket(listening.accept()[0], server_side=True) as link:
            link.settimeout(20)
            link.recv(4096)
            beginning, more = ANSWERS[form]
            link.sendall(beginning)
            while more:
                link.sendall(more)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    monkeypatch.setattr(cluster, "_port", listening.getsockname()[1])
    tracemalloc.start()
    begun = time.monotonic()
    try:
        with pytest.raises(UserError, match=r"did not answer|refused"):
            cluster.node("n1")
        assert time.monotonic() - begun < 20
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
        listening.close()
        thread.join(30)


def test_a_token_that_no_header_may_hold_is_not_quoted(api: tuple[Cluster, Api], tmp_path: Path) -> None:
    (tmp_path / "account" / "token").write_text(TOKEN[:30] + "\n" + TOKEN[30:])
    with pytest.raises(UserError) as raised:
        api[0].node("n1")
    assert TOKEN[:30] not in str(raised.value) and TOKEN[30:] not in str(raised.value)


def test_no_variable_has_the_keys_of_the_connection_written(
    api: tuple[Cluster, Api], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Python's default context heeds it, and sudo -E keeps it."""
    cluster, made = api
    made.nodes["n1"] = node(OTHER)
    monkeypatch.setenv("SSLKEYLOGFILE", str(tmp_path / "keys"))
    assert ssl.create_default_context().keylog_filename is not None, "it is no way in"
    (tmp_path / "keys").unlink()
    cluster.node("n1")
    assert not (tmp_path / "keys").exists()


def test_another_servers_certificate_is_refused(api: tuple[Cluster, Api], tmp_path: Path) -> None:
    cluster, made = api
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(tmp_path / "k"), "-subj", "/CN=x"]
    subprocess.run([*words, "-out", str(tmp_path / "account" / "ca.crt")], check=True, capture_output=True)
    with pytest.raises(UserError, match="did not answer"):
        cluster.node("n1")
    assert made.asked == []


def test_outside_of_a_pod_nothing_is_asked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no pod"):
        Cluster({}, str(tmp_path))


@pytest.mark.parametrize("port", ["9" * 5000, "\u00b2", "65536", "-1", ""])
def test_a_port_that_is_none_is_no_internal_error(port: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x")
    with pytest.raises(UserError, match="no pod"):
        Cluster({"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": port}, str(tmp_path))
