"""How the process ends: interrupted, out of time, with little room, or by a bug of its own."""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from driven import HOSTS, PROGRAM, RULES, environment, run, shown

from torchtune_sys.cli import watch

SMALL = str(HOSTS / "base-system.json")

HANGING = (
    RULES
    + """
import os
from torchtune_sys import probes

def hang(host, intent):
    return host.run((os.environ["HANGING_TOOL"],), timeout_s=300)

def judge(s, p):
    need(s.gpu)
    yield from ()

probes.PROBES.clear()
probes.PROBES.update({name: (lambda host, intent: Missing(Why.ABSENT, "x")) for name in sys.modules["torchtune_sys.model.snapshot"].FAMILIES})
probes.PROBES["gpu"] = hang
rules.CATALOGUE = (made("gpu-judged", Severity.ERROR, judge), made("memory-judged", Severity.WARNING, fails))
from torchtune_sys.cli.main import main
main()
"""
)


@pytest.fixture
def tool(tmp_path: Path) -> Path:
    """A program that hangs, with a child that hangs; both write down their process ids."""
    place = tmp_path / "nvidia-smi"
    place.write_text(f'#!/bin/sh\nsleep 300 &\necho "$$ $!" >{tmp_path}/pids.new\nmv {tmp_path}/pids.new {tmp_path}/pids\nwait\n')
    place.chmod(0o755)
    return place


def start(tool: Path, *arguments: str) -> subprocess.Popen[str]:
    # A background shell job ignores SIGINT and so would its children (POSIX, 2.11): the program must hear it here.
    return subprocess.Popen(
        [sys.executable, "-c", HANGING, "check", *arguments],
        env=environment({"HANGING_TOOL": str(tool)}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )


def started(tool: Path) -> list[int]:
    for _ in range(6000):
        if (tool.parent / "pids").exists():
            return [int(word) for word in (tool.parent / "pids").read_text().split()]
        time.sleep(0.01)
    raise AssertionError("the hanging tool was never started")


def running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def gone(pids: list[int]) -> bool:
    for _ in range(2000):
        if not any(map(running, pids)):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("number", "status", "words"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated"), (signal.SIGHUP, 129, "terminated")],
)
def test_a_signal_ends_the_program_and_its_children(tool: Path, number: int, status: int, words: str) -> None:
    child = start(tool)
    pids = started(tool)
    assert all(map(running, pids))
    begun = time.monotonic()
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err.strip()) == (status, "", f"torchtune-sys: {words}")
    assert time.monotonic() - begun < 15
    assert gone(pids)


def test_a_tool_that_hangs_costs_the_deadline_and_ends_as_unknown(tool: Path) -> None:
    begun = time.monotonic()
    child = start(tool, "--timeout", "1")
    out, err = child.communicate(timeout=60)
    assert child.returncode == 3, err
    assert 0.7 <= time.monotonic() - begun < 30
    told = " ".join(out.split())
    assert "a longer --timeout – " in told and "nvidia-smi: no answer within" in told, "the tool is named, not the whole look"
    assert "[memory-judged]" in out, "what was read is reported"
    assert gone(started(tool))


def test_too_short_a_time_is_no_finding() -> None:
    found = run("check", "--timeout", "0.000001", "--format", "json", "--select", "storage,limits")
    assert found.returncode in (0, 3), found.stderr
    assert [row["rule"] for row in json.loads(found.stdout)["results"] if row["verdict"] == "crashed"] == []
    assert "filesystem-not-answering" not in [
        row["rule"] for row in json.loads(found.stdout)["results"] if row["verdict"] == "fail"
    ]


def test_the_time_limit_holds_for_a_pipe_that_nobody_writes_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    begun = time.monotonic()
    found = run("check", "--timeout", "1", "--from", str(tmp_path / "pipe"))
    assert (found.returncode, found.stdout) == (2, "")
    assert "delivered nothing for 1 s" in found.stderr
    assert time.monotonic() - begun < 30


def test_a_second_interrupt_does_not_leave_the_children(tool: Path) -> None:
    tool.write_text(tool.read_text().replace("sleep 300 &", "trap '' TERM; sleep 300 &"))
    child = start(tool)
    pids = started(tool)
    for _ in range(3):
        child.send_signal(signal.SIGINT)
        time.sleep(0.15)
    out, err = child.communicate(timeout=60)
    assert (child.returncode, out, err.strip()) == (130, "", "torchtune-sys: interrupted")
    assert gone(pids)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_end_that_hangs_is_an_end(tool: Path, number: int, status: int) -> None:
    stuck = "import threading; from torchtune_sys.cli import main as m; lock = threading.Lock(); lock.acquire(); m._failed = lambda *_: lock.acquire()\n"
    child = subprocess.Popen(
        [sys.executable, "-c", stuck + HANGING, "check"],
        env=environment({"HANGING_TOOL": str(tool)}),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler) and None,
    )
    pids = started(tool)
    child.send_signal(number)
    try:
        assert child.wait(timeout=60) == status
    finally:
        child.kill()
    assert gone(pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("when", ["before the command", "while it is told", "in the callback of a weak reference"])
def test_a_signal_at_another_moment_is_quiet_too(number: int, when: str) -> None:
    """Ctrl-C reaches a parent and its child, and the parent passes it on: the second one came while the first was told."""
    at = f"import os; from torchtune_sys.cli import main as m; hit = lambda: os.kill(os.getpid(), {int(number)})\n"
    early = "heed = m._heed_termination; m._heed_termination = lambda: (heed(), hit())\n"
    again = "m.run = lambda args: hit(); told = m.tell; m.tell = lambda *rows: (hit(), told(*rows))\n"
    dropped = "import weakref; from time import sleep\nm.run = lambda args: (weakref.ref(type('C', (), {})(), lambda _: hit()), sleep(60))\n"
    code = at + {"before the command": early, "while it is told": again}.get(when, dropped)
    done = subprocess.run([sys.executable, "-I", "-c", code + "m.main()", "rules"], capture_output=True, text=True, timeout=60)
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert (done.returncode, done.stderr.strip()) == (128 + number, f"torchtune-sys: {word}")


def test_leaving_while_the_module_for_children_is_being_imported() -> None:
    code = "import sys, types; sys.modules['torchtune_sys.host.children.process'] = types.ModuleType('half'); from torchtune_sys.cli.terminal import leave; leave(7)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (found.returncode, found.stderr) == (7, "")


def test_nohup_is_respected(tool: Path) -> None:
    child = subprocess.Popen(
        ["nohup", sys.executable, "-c", HANGING, "check", "--timeout", "1"],
        env=environment({"HANGING_TOOL": str(tool)}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    started(tool)
    child.send_signal(signal.SIGHUP)
    child.communicate(timeout=60)
    assert child.returncode == 3


def test_a_person_sees_what_is_waited_for(tool: Path) -> None:
    leader, follower = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", HANGING, "check", "--timeout", "6"],
        env=environment({"HANGING_TOOL": str(tool)}),
        stdout=subprocess.PIPE,
        stderr=follower,
    )
    os.close(follower)
    out, _ = child.communicate(timeout=60)
    told = shown(leader)
    assert re.search(r"still reading: gpu \(\d s\)", told) and told.endswith("\x1b[K")
    assert b"still reading" not in out


def test_the_word_at_the_end_does_not_go_on_in_the_status_line() -> None:
    leader, follower = pty.openpty()
    code = "import time; from torchtune_sys.cli import main as m, terminal\nm.run = lambda args: (terminal.status('hosts read: 3'), time.sleep(60))\nm.main()"
    child = subprocess.Popen([sys.executable, "-c", code, "rules"], env=environment({"TERM": "xterm"}), stderr=follower)
    os.close(follower)
    told = ""
    while "hosts read" not in told:
        told += os.read(leader, 1000).decode()
    child.send_signal(signal.SIGTERM)
    assert child.wait(timeout=60) == 143
    assert shown(leader) == "\r\x1b[Ktorchtune-sys: terminated\r\n"


@pytest.mark.parametrize(("command", "words"), [("snapshot", ""), ("record", "not recorded completely: gpu")])
def test_a_look_that_did_not_end_is_told_in_the_status(tool: Path, command: str, words: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", HANGING, command, "--timeout", "1"],
        env=environment({"HANGING_TOOL": str(tool)}),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert found.returncode == 3
    assert words in found.stderr and found.stdout


def test_a_stopped_tool_is_ended_too(tool: Path) -> None:
    child = start(tool, "--timeout", "1")
    pids = started(tool)
    os.killpg(os.getpgid(pids[0]), signal.SIGSTOP)
    child.communicate(timeout=60)
    assert child.returncode == 3
    assert gone(pids)


@pytest.mark.parametrize("limit", [(resource.RLIMIT_AS, 350 << 20), (resource.RLIMIT_NOFILE, 20)])
def test_a_session_with_little_room_is_judged_all_the_same(limit: tuple[int, int]) -> None:
    number, value = limit
    found = subprocess.run(
        [*PROGRAM, "check", "--format", "json"],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
        preexec_fn=lambda: resource.setrlimit(number, (value, value)),
    )
    assert found.returncode in (0, 1, 3) and found.stderr == "", found.stderr
    assert json.loads(found.stdout)["summary"]["crashed"] == 0


@pytest.mark.parametrize("kind", ["nothing", "no-name", "directory", "text"])
@pytest.mark.parametrize(
    "command",
    [
        "check",
        "snapshot",
        "record",
        *(
            pytest.param(words, marks=pytest.mark.exhaustive)
            for words in ("plan", "apply --dry-run", "smoke", "generate script", "generate env", "generate numactl")
        ),
        "generate sysctl",
        "generate install",
    ],
)
def test_a_python_that_cannot_be_started_is_a_mistake_of_who_named_it(command: str, kind: str, tmp_path: Path) -> None:
    place = tmp_path / "python3"
    if kind == "directory":
        place.mkdir()
    elif kind == "text":
        place.write_text("not a program")
    found = run(*command.split(), "--python", "nothing-of-this-name" if kind == "no-name" else str(place))
    assert (found.returncode, found.stdout) == (2, ""), found.stdout + found.stderr
    told = {"directory": "is a directory", "text": "is not executable", "no-name": "no 'nothing-of-this-name' here"}.get(
        kind, "there is no "
    )
    assert told in found.stderr and "use --python to name" in found.stderr, found.stderr


def test_of_a_recording_the_interpreter_need_not_be_here() -> None:
    assert run("check", "--from", str(HOSTS / "healthy.json"), "--python", "/nope").returncode != 2


def test_an_interpreter_that_hangs_costs_the_deadline(tmp_path: Path) -> None:
    place = tmp_path / "python3"
    place.write_text("#!/bin/sh\nexec sleep 300\n")
    place.chmod(0o755)
    begun = time.monotonic()
    found = run("check", "--python", str(place), "--timeout", "2")
    assert time.monotonic() - begun < 30
    assert found.returncode in (1, 3)
    assert "Traceback" not in found.stderr


CRASH = "import torchtune_sys.cli.take_snapshot as look\ndef now(): raise RuntimeError('the\\nclock')\nlook.now = now\nfrom torchtune_sys.cli.main import main\nmain()"


def crash(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CRASH, *arguments], env=environment(env), capture_output=True, text=True, timeout=120
    )


def test_an_internal_error_is_one_line_and_4() -> None:
    found = crash("check", "--from", SMALL)
    assert found.returncode == 4 and found.stdout == ""
    assert found.stderr.startswith("torchtune-sys: internal error: RuntimeError: the clock (a bug)\n")
    assert "Traceback" not in found.stderr


def test_debug_shows_the_traceback() -> None:
    for found in (crash("--debug", "check", "--from", SMALL), crash("check", "--from", SMALL, TORCHTUNE_SYS_DEBUG="1")):
        assert found.returncode == 4
        assert "Traceback" in found.stderr and "in now" in found.stderr


def test_an_internal_error_is_unknown_for_nagios() -> None:
    found = crash("check", "--from", SMALL, "--format", "nagios")
    assert found.returncode == 3 and found.stdout.startswith("TORCHTUNE-SYS UNKNOWN - internal error")


NOBODY_ELSE = 40_000 + os.getpid() % 20_000
"""A user id of this process alone: what any other process of the same user takes, counts against the limit, too."""
WITHOUT_CHILDREN = f"""ulimit -u 1; exec setpriv --reuid {NOBODY_ELSE} --regid {NOBODY_ELSE} --clear-groups --inh-caps +dac_read_search \\
    --ambient-caps +dac_read_search --bounding-set -sys_admin,-sys_resource -- "$@\""""
"""The kernel counts the processes of others than root, and of who may not change limits (fork(2), EAGAIN)."""


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to act as a user with one process")
def test_where_no_thread_can_be_started_nothing_ends_by_that() -> None:
    """What starts as another user is refused as where no process can be; file servers are asked in turn."""
    code = """if True:
        from torchtune_sys.host.account import without_our_keys
        from torchtune_sys.host.remote import Remotes
        try:
            without_our_keys(int, lambda: False)
        except BlockingIOError:
            print("refused")
        Remotes("30 25 0:45 / /far rw shared:1 - nfs4 server:/ rw\\n").ask(("/here", "/there"))
        print("asked")
    """
    found = subprocess.run(
        ["bash", "-c", WITHOUT_CHILDREN, "bash", sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (found.stdout, found.stderr) == ("refused\nasked\n", "")


@pytest.mark.skipif(os.getuid() != 0 or shutil.which("setpriv") is None, reason="needs root, to act as a user with one process")
@pytest.mark.parametrize(
    ("words", "status"),
    [
        (f"check --from {SMALL}", 3),
        (f"check --from {SMALL} --format nagios", 3),
        (f"diagnose {SMALL}", 3),
        ("rules --output /dev/null", 3),
        ("preflight --hook prolog --from x", 0),
        ("preflight --budget 5 --site-checks SITE", 3),
    ],
)
def test_where_no_process_can_be_started_nothing_is_said_of_the_host(words: str, status: int, tmp_path: Path) -> None:
    (tmp_path / "check").symlink_to("/bin/true")
    found = subprocess.run(
        ["bash", "-c", WITHOUT_CHILDREN, "bash", *PROGRAM, *words.replace("SITE", str(tmp_path)).split()],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
    )
    assert found.returncode == status and "no process could be started" in found.stdout + found.stderr
    assert "Traceback" not in found.stderr and "bug" not in found.stderr


def test_a_signal_for_a_child_that_was_waited_for_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """It came after the child's end, and before ours."""
    ended = os.waitpid

    def waited(child: int, flags: int) -> tuple[int, int]:
        found = ended(child, flags)
        if found[0]:
            os.kill(os.getpid(), signal.SIGINT)
        return found

    monkeypatch.setattr(os, "waitpid", waited)
    assert watch.run_limited(lambda: os._exit(7), 5, lambda: 99) == 7
