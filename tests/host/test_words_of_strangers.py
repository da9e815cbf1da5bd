"""Ways in that a fourth look found: what another user's process, another node or nobody known says stops nobody who reads it."""

from __future__ import annotations

import json
import os
import resource
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from driven import PROGRAM, run

from planted_secrets import Secrets
from torchtune_sys.host.children.rank_processes import RankMessage, RankProcesses
from torchtune_sys.host.peers.rank_worker import RankWorker
from torchtune_sys.host.secrets.values import HIDDEN
from torchtune_sys.model import codec
from torchtune_sys.preflight.in_group.notes import Notes

DEEP = b'{"x": ' + b"[" * 100_000
CUT = b'{"schema": "torchtune-sys/diagnosis/1", "node": "\xc3"}'


@pytest.mark.parametrize("said", [DEEP, CUT, b'{"node": 1e999}', b"\0"], ids=["deep", "cut", "number", "nothing"])
def test_a_node_s_line_costs_no_other_node_its_diagnosis(tmp_path: Path, said: bytes) -> None:
    """``diagnose --merge``: the first two ended all of it with an internal error. A line that a launcher cuts may end within a letter."""
    log = tmp_path / "train.log"
    log.write_text("torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.\n")
    own = run("diagnose", "--symptoms", str(log)).stdout.encode()
    lines = tmp_path / "lines"
    lines.write_bytes(own + said + b"\n" + own)
    done = run("diagnose", "--merge", "--format", "json", str(lines))
    told = json.loads(done.stdout)
    assert told["causes"] and "no diagnosis" in told["unread"][0]["why"], done


@pytest.mark.parametrize("said", [DEEP, b'{"x": "\xff"}'], ids=["deep", "cut"])
def test_a_rank_of_another_user_says_nothing_that_ends_the_test(tmp_path: Path, said: bytes) -> None:
    script = "import os, socket, sys\ns = socket.socket(socket.AF_UNIX); s.connect('\\0' + os.environ['S'])\n"
    script += "s.sendall(sys.stdin.buffer.read())\n"
    (tmp_path / "said").write_bytes(said + b'\n{"event": "here"}\n')
    words = ("/bin/sh", "-c", 'exec "$@" < "$0"', str(tmp_path / "said"), sys.executable, "-c", script)
    events: list[object] = []
    with RankProcesses(words, dict(os.environ), "/", "S") as gang:
        until_s = time.monotonic() + 60
        while time.monotonic() < until_s and not any(isinstance(event, RankMessage) for event in events):
            events += gang.wait(1)
    assert [event.fields for event in events if isinstance(event, RankMessage)] == [{"event": "here"}], events


@pytest.mark.parametrize("said", ["b'['*100_000 + b'\\n'", "b'\\xff\\n'", "b'x' * (1 << 20)"], ids=["deep", "cut", "without end"])
def test_a_worker_of_the_examined_user_s_takes_no_memory_and_ends_nobody(said: str) -> None:
    """What speaks for a node is root's where root runs the pre-flight; the worker is the user's. Without an end it took what it printed."""
    script = f"import sys\nwhile True: sys.stdout.buffer.write({said}); sys.stdout.buffer.flush()"
    with open(os.devnull, "rb") as nothing:
        worker = RankWorker((sys.executable, "-c", script), dict(os.environ), nothing.fileno(), None)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        try:
            told = worker.ask("1", {}, 3)
        finally:
            worker.end()
    assert told == {"error": "the worker does not answer"}
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10, "kept what it printed"


def test_a_worker_starts_from_a_process_that_holds_many_files() -> None:
    """A launcher may leave any number open to its ranks; a shell's redirection knows those below ten alone."""
    script = "import sys, json\nfor line in sys.stdin: print(json.dumps({'id': json.loads(line)['id'], 'value': 5}), flush=True)"
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(20)]
    worker = RankWorker((sys.executable, "-c", script), dict(os.environ), held[0], None)
    try:
        assert worker.ask("1", {}, 60) == 5
    finally:
        worker.end()
        for handle in held:
            os.close(handle)


def test_what_torch_says_on_a_rank_is_filtered_before_it_goes_to_all_nodes(tmp_path: Path) -> None:
    """The joint pre-flight quotes why torch does not import; so do a scheduler's reason and a node's condition, which everybody reads."""
    secret, token = "hunter2hunter2", "nvapi-" + "Zq8" * 15
    (tmp_path / "torch.py").write_text(
        f"raise RuntimeError('index https://me:{secret}@pypi.example Authorization: Bearer {token}')\n"
    )
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    env = {
        **os.environ,
        "PYTHONPATH": str(tmp_path),
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    argv = [*PROGRAM, "preflight", "--level", "standard", "--budget", "40", "--python", sys.executable, "--format", "json"]
    ranks = [
        subprocess.Popen(
            argv, env={**env, "RANK": rank, "LOCAL_RANK": rank}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        for rank in "01"
    ]
    told = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert all("RuntimeError" in said and HIDDEN in said for said in told), told
    assert not [said for said in told if secret in said or token in said], told


def test_what_a_training_process_notes_for_the_others_is_filtered() -> None:
    secrets, store = Secrets(), Written()
    for number in range(200):
        text = (secrets.token, secrets.password, secrets.random)[number % 3]()
        Notes(store, "p/").put(str(number), {"error": text, "rows": [text], "pair": (text,), "x": 1})
    assert len(store.texts) == 200 and not secrets.seen_in("".join(store.texts))


class Written:
    """Keeps what is put."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def set(self, _key: str, text: str) -> None:
        self.texts.append(text)


class Store:
    """As torch's, with what a stranger put into it: it knows no secret."""

    def check(self, _keys: list[str]) -> bool:
        return True

    def get(self, key: str) -> bytes:
        return b'{"seen": 1}' if key.endswith("good") else DEEP


def test_a_note_of_a_stranger_s_in_torch_s_store_ends_no_training() -> None:
    assert Notes(Store(), "p/").gather(("bad", "good"), 0) == {"bad": None, "good": {"seen": 1}}


def test_an_interpreter_that_answers_with_brackets_crashes_no_probe() -> None:
    with pytest.raises(ValueError, match="recursion"):
        codec.loads(DEEP)


def test_a_worker_that_never_started_answers_a_task_with_the_reason() -> None:
    with open(os.devnull, "rb") as nothing:
        worker = RankWorker(("/nonexistent/python3", "-c", ""), dict(os.environ), nothing.fileno(), None)
    try:
        answer = worker.ask("1", {"do": "compute"}, 1.0)
    finally:
        worker.end()
    assert worker.failure
    assert answer["error"] == worker.failure
