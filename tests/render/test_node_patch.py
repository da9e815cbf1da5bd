"""Condition and taint of a Kubernetes node: what is patched, and that a real HTTPS server is asked for no more than the rights allow."""

from __future__ import annotations

import http.server
import json
import shlex
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from torchtune_sys.errors import UserError
from torchtune_sys.host.cluster import Cluster
from torchtune_sys.model.preflight import Blame, Cause, Go, NodeVerdict, Preflight, Scale, Weight
from torchtune_sys.render import node_patch

OTHER = {"key": "maintenance", "effect": "NoSchedule"}
OURS = {"key": node_patch.TAINT, "value": "gpu-lost", "effect": "NoSchedule"}


def verdict(go: Go, *causes: str) -> Preflight:
    told = tuple(Cause(cause=each, rule=each, blame=Blame.NODE, weight=Weight.FATAL, seen="it is \033[31mred") for each in causes)
    return Preflight(
        version="1",
        time="2026-11-23T05:00:00Z",
        epoch_s=0.0,
        where="health-check",
        level="fast",
        seconds=1.0,
        verdict=go,
        nodes=(NodeVerdict(node="n1", verdict=go, causes=told),),
        scale=Scale(nodes=1, ranks=1),
    )


def node(*taints: dict[str, str]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [*taints]}}


def test_the_condition_says_why() -> None:
    (told,) = node_patch.condition(verdict(Go.NO_GO, "gpu-lost"))["status"]["conditions"]
    assert (told["type"], told["status"], told["reason"]) == ("TorchtuneSysFit", "False", "NoGo")
    assert told["message"].startswith("[node] gpu-lost: it is")
    assert "\033" not in told["message"]


@pytest.mark.parametrize(
    ("go", "before", "after"),
    [
        (Go.NO_GO, [OTHER], [OTHER, OURS]),
        (Go.NO_GO, [OTHER, {**OURS, "value": "old"}], [OTHER, OURS]),
        (Go.NO_GO, [OTHER, OURS], None),
        (Go.GO, [OURS, OTHER], [OTHER]),
        (Go.GO, [OTHER], None),
        (Go.UNKNOWN, [OURS, OTHER], None),
        (Go.UNKNOWN, [], None),
    ],
)
def test_only_our_own_taint_comes_and_goes(go: Go, before: list[Any], after: list[Any] | None) -> None:
    found = node_patch.taints(verdict(go, *(["gpu-lost"] if go is Go.NO_GO else [])), node(*before))
    assert found == (None if after is None else {"metadata": {"resourceVersion": "7"}, "spec": {"taints": after}})


def test_what_a_person_would_type_touches_no_other_taint() -> None:
    unfit, well, unsure = (
        node_patch.commands(verdict(go, *causes)) for go, causes in ((Go.NO_GO, ["gpu-lost"]), (Go.GO, []), (Go.UNKNOWN, []))
    )
    assert unfit[1] == "kubectl taint node n1 torchtune-sys.io/unfit=gpu-lost:NoSchedule --overwrite"
    assert well[1] == "kubectl taint node n1 torchtune-sys.io/unfit-"
    assert len(unsure) == 1
    patch = json.loads(shlex.split(unfit[0])[-1])
    assert patch["status"]["conditions"][0]["status"] == "False"


@pytest.fixture
def api(tmp_path: Path) -> Iterator[tuple[Cluster, list[Any], dict[str, int]]]:
    """A server with a certificate of its own authority; what it was asked, and the status that it answers by method."""
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
    asked: list[Any] = []
    answers: dict[str, int] = {}

    class Answers(http.server.BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            form = self.headers.get("Content-Type")
            asked.append((self.command, self.path, form, json.loads(body) if body else None, self.headers["Authorization"]))
            text = json.dumps({**node(OTHER), "message": "forbidden"}).encode()
            self.send_response(answers.get(self.command, 200))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_PATCH = _answer

        def log_message(self, *_words: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    env = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_address[1])}
    try:
        yield Cluster(env, str(account)), asked, answers
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_what_is_asked_of_the_cluster(api: tuple[Cluster, list[Any], dict[str, int]]) -> None:
    cluster, asked, answers = api
    found = cluster.node("n/1")
    patch = node_patch.taints(verdict(Go.NO_GO, "gpu-lost"), found)
    assert patch is not None
    cluster.patch_status("n1", node_patch.condition(verdict(Go.NO_GO, "gpu-lost")))
    cluster.patch("n1", patch)
    assert [each[:3] for each in asked] == [
        ("GET", "/api/v1/nodes/n%2F1", None),
        ("PATCH", "/api/v1/nodes/n1/status", "application/strategic-merge-patch+json"),
        ("PATCH", "/api/v1/nodes/n1", "application/merge-patch+json"),
    ]
    assert {each[4] for each in asked} == {"Bearer secret-token"}
    assert asked[2][3] == {"metadata": {"resourceVersion": "7"}, "spec": {"taints": [OTHER, OURS]}}
    answers["PATCH"] = 409
    with pytest.raises(UserError, match="409 forbidden"):
        cluster.patch("n1", patch)


def test_another_servers_certificate_is_refused(api: tuple[Cluster, list[Any], dict[str, int]], tmp_path: Path) -> None:
    cluster, asked, _answers = api
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", str(tmp_path / "k"), "-subj", "/CN=x"]
    subprocess.run([*words, "-out", str(tmp_path / "account" / "ca.crt")], check=True, capture_output=True)
    with pytest.raises(UserError, match="did not answer"):
        cluster.node("n1")
    assert asked == []


def test_outside_of_a_pod_nothing_is_asked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no pod"):
        Cluster({}, str(tmp_path))
