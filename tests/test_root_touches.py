"""What a run as root reads, executes, writes and listens on is what the committed list says."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPO = Path(__file__).resolve().parent.parent
LIST = REPO / "tests/root_touches.txt"
SCRIPT = REPO / "scripts/trace_root.py"

_found = importlib.util.spec_from_file_location("trace_root", SCRIPT)
assert _found is not None and _found.loader is not None
trace_root = importlib.util.module_from_spec(_found)
_found.loader.exec_module(trace_root)


def can_trace() -> bool:
    if os.geteuid() or shutil.which("strace") is None:
        return False
    return not subprocess.run(("unshare", "--mount", "true"), capture_output=True, check=False).returncode


needs_trace = pytest.mark.skipif(not can_trace(), reason="needs root that may mount, and strace")


TORCH = os.environ.get("TORCHTUNE_SYS_TEST_TORCH", "0")


def compared(*more: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(SCRIPT), "--compare", str(LIST), *more]
    return subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)


@needs_trace
@pytest.mark.long
@pytest.mark.parametrize("group", trace_root.COMMANDS)
def test_root_touches_what_is_listed_and_nothing_else(group: str) -> None:
    if group == "smoke" and "/" not in TORCH:
        pytest.skip("TORCHTUNE_SYS_TEST_TORCH names no Python with torch")
    done = compared("--only", group, *(("--torch", TORCH) if group == "smoke" else ()))
    assert done.returncode == 0, f"not in {LIST.name}:\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("group", trace_root.COMMANDS)
def test_what_one_group_writes_is_not_every_group_s(group: str) -> None:
    """A line that only the change may have: the others are held to a list of their own."""
    listed = trace_root.patterns_of(LIST)
    covered = [*listed[""], *listed[group]]
    new = {
        "write /etc/sysctl.d/99-torchtune-sys.conf",
        "write /root/.ssh/authorized_keys",
        'bind AF_INET sin_port=htons(N), sin_addr=inet_addr("N.N.N.N")',
    }
    assert len(trace_root.unlisted(new, covered)) == len(new), "digits stand there as N"
    assert ("write /var/lib/torchtune-sys/N.journal" in covered) == (group == "change")
    assert ("listen" in covered) == (group == "smoke")


LISTENS = """
import os, pathlib, socket
listening = socket.socket()
listening.bind(("0.0.0.0", 0))
listening.listen()
here = socket.create_connection(("127.0.0.1", listening.getsockname()[1]))
pathlib.Path("/root/.torchtune-sys-planted").touch()
pathlib.Path("/root/.torchtune-sys-planted").unlink()
open("/etc/shadow").close()
os.system("true")
"""


@needs_trace
def test_what_is_not_listed_is_seen() -> None:
    done = compared("--", sys.executable, "-I", "-c", LISTENS)
    assert done.returncode == 1, done.stdout + done.stderr
    for line in (
        'bind AF_INET sin_port=htons(N), sin_addr=inet_addr("N.N.N.N")',
        "connect AF_INET sin_port=htons(N), sin_addr=LOOPBACK",
        "listen",
        "write /root/.torchtune-sys-planted",
        "read /etc/shadow",
    ):
        assert line in done.stdout.splitlines(), done.stdout
    assert "/bin/sh" in done.stdout


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        ('openat(AT_FDCWD</>, "/etc/shadow", O_RDONLY|O_CLOEXEC) = 3</etc/shadow>', ["read /etc/shadow"]),
        ('openat(5</etc>, "passwd", O_RDONLY) = 3</etc/passwd>', ["read /etc/passwd"]),
        ('openat(AT_FDCWD</>, "/etc/new", O_WRONLY|O_CREAT, 0666) = -1 EACCES (Permission denied)', ["write /etc/new"]),
        ('openat(AT_FDCWD</>, "/etc/none", O_RDONLY) = -1 ENOENT (No such file or directory)', []),
        ('rename("/a/1", "/b/2") = 0', ["write /a/N", "write /b/N"]),
        ('execve("/usr/bin/id", ["id"], 0x7ffd /* 20 vars */) = 0', ["execute /usr/bin/id"]),
        (
            'bind(3<TCP:[1]>, {sa_family=AF_INET, sin_port=htons(80), sin_addr=inet_addr("0.0.0.0")}, 16) = 0',
            ['bind AF_INET sin_port=htons(80), sin_addr=inet_addr("N.N.N.N")'],
        ),
        ("listen(3<TCP:[1]>, 128) = 0", ["listen"]),
        (
            'bind(3<TCP:[1]>, {sa_family=AF_INET, sin_port=htons(2900), sin_addr=inet_addr("127.0.0.1")}, 16) = 0',
            ["bind AF_INET sin_port=htons(N), sin_addr=LOOPBACK"],
        ),
        ('openat(AT_FDCWD</>, "/usr/lib/x86_64-linux-gnu/libc.so.6", O_RDONLY) = 3</usr/lib/libc.so.6>', ["read LIBRARY"]),
    ],
)
def test_a_call_is_understood(call: str, wanted: list[str]) -> None:
    assert list(trace_root.touched(call, [])) == wanted


def test_torn_calls_are_put_together(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        '11 openat(AT_FDCWD</>, "/a" <unfinished ...>\n12 bind(3, {sa_family=AF_UNIX}, 2) = 0\n11 <... openat resumed>, O_RDONLY) = 3</a>\n'
    )
    calls = list(trace_root.lines_of(log))
    assert [one for call in calls for one in trace_root.touched(call, [])] == ["bind AF_UNIX", "read /a"]
