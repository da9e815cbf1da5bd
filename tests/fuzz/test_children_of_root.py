"""What a child that root starts as another user keeps of root's, and how children are started, spoken to and ended (docs/attacks.md)."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from torchtune_sys.host import account, processes
from torchtune_sys.host.account import Account
from torchtune_sys.host.children import examined
from torchtune_sys.host.children.left_processes import left_processes
from torchtune_sys.host.children.rank_processes import RankProcesses
from torchtune_sys.host.peers.rank_worker import RankWorker
from torchtune_sys.model.values import Missing
from two_users import PROGRAM, SYSTEM_PYTHON, Scene, as_root, needs_root

pytestmark = needs_root
TELLS = "import os; open({marks!r} + '/%d-%d' % (os.geteuid(), os.getpid()), 'w').write(repr({{'uid': os.geteuid(), 'told': open('/proc/self/status').read()}}))\n"
CAPS = "+net_raw,+sys_admin"
COMMANDS = ("check -q", "check -q --live", "smoke --quick --device cpu --timeout 60")


def what_hers_tell(scene: Scene, command: str, *before: str) -> list[str]:
    """Return what each process of alice's Python reads in /proc/self/status, below a root that is started by the words ``before``."""
    venv = scene.alice.venv()
    scene.alice.write(scene.alice.packages(venv) / "tells.pth", TELLS.format(marks=str(scene.marks)))
    argv = [*before, *PROGRAM, *command.split(), "--python", str(venv)]
    done = subprocess.run(argv, cwd="/", capture_output=True, text=True, timeout=200)
    told = scene.what_ran()
    assert told and {row["uid"] for row in told} == {scene.alice.uid}, done
    return [str(row["told"]) for row in told]


@pytest.mark.parametrize("command", COMMANDS)
def test_no_capability_of_root_s_session_is_handed_on(scene: Scene, command: str) -> None:
    """A unit with AmbientCapabilities= and SecureBits=no-setuid-fixup, or a container that was started so: what setuid(2) takes away otherwise stays."""
    kept = ("setpriv", "--securebits", "+no_setuid_fixup", "--inh-caps", CAPS, "--ambient-caps", CAPS)
    for status in what_hers_tell(scene, command, *kept):
        sets = {line.split()[0]: int(line.split()[1], 16) for line in status.splitlines() if line.startswith("Cap")}
        assert {name: value for name, value in sets.items() if name != "CapBnd:" and value} == {}


REUSED = """
import os, signal, sys, time
from torchtune_sys.host.children import process
from torchtune_sys.host import processes
from torchtune_sys.host.children.rank_processes import RankProcesses

victims = []

def take(number):
    "Start a process that leads a group of its own, by the number of one that is gone, as whoever forks without a pause will at last."
    if os.path.exists(f"/proc/{number}"):
        return
    with open("/proc/sys/kernel/ns_last_pid", "w") as file:
        file.write(str(number - 1))
    pid = os.fork()
    if pid == 0:
        os.setsid()
        time.sleep(600)
    if pid == number:
        victims.append(pid)
        while os.getpgid(pid) != pid:
            time.sleep(0.01)

def killpg(group, number, real=os.killpg):
    take(group)
    real(group, number)

def ended(child, real=process.end):
    below = [int(word) for word in open(f"/proc/{child.pid}/task/{child.pid}/children").read().split()]
    told = real(child)
    for pid in below:
        os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(pid, 0)
        except ChildProcessError:
            pass
        until = time.monotonic() + 5
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
            time.sleep(0.01)
        take(pid)
    return told

os.killpg = killpg
for argv in (("true",), ("sleep", "30"), ("sh", "-c", "trap '' TERM; sleep 30")):
    process.run(argv, timeout_s=0.3)
process.end = ended
with RankProcesses(("sh", "-c", "setsid sleep 60 & wait"), {"PATH": os.environ["PATH"]}, "/", "SOCKET"):
    time.sleep(0.5)
print(len(victims), [pid for pid in victims if os.waitpid(pid, os.WNOHANG) != (0, 0)])
"""


def test_who_has_the_number_of_a_child_that_has_ended_is_not_killed() -> None:
    """Its group was killed after it had been waited for, when its number was free: with 32,768 numbers, whoever forks all the time has it soon."""
    if not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK):
        pytest.skip("the kernel does not let a test choose the next number")
    done = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", REUSED], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(" []\n") and not done.stdout.startswith("0 "), done.stdout


READS_NOTHING = """
import fcntl, time
fcntl.fcntl(0, 1031, 4096)  # F_SETPIPE_SZ
print('{"id": "", "value": 1}', flush=True)
time.sleep(600)
"""


def test_a_worker_that_reads_no_task_holds_nobody() -> None:
    """The examined user's: a pipe of one page is full after a task or two."""
    worker = RankWorker((sys.executable, "-c", READS_NOTHING), {}, 2, None)
    assert worker.answer(20) == {"id": "", "value": 1}
    answers: list[object] = []
    asking = threading.Thread(target=lambda: answers.extend(worker.ask("x", "y" * 3000, 0.1) for _ in range(3)), daemon=True)
    asking.start()
    asking.join(30)
    assert [dict(one) for one in answers] == [
        {"error": "the worker does not answer"},
        {"error": "the worker does not read its tasks"},
        {"error": "the worker does not read its tasks"},
    ]
    worker.end()


MARKED = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
name = ""
while not name:
    rows = open("/proc/net/unix").read().split("\\n")
    name = next((row.split()[-1][1:] for row in rows if row.split()[-1:] and row.split()[-1].startswith("@torchtune-sys-")), "")
    time.sleep(0.01)
for _ in range(20):
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "600"], {"X": name})
time.sleep(0.2)
print(name, flush=True)
while True:
    try:
        os.wait()
    except ChildProcessError:
        break
"""


def test_nobody_else_s_process_is_ended_because_it_bears_the_socket_s_name(scene: Scene) -> None:
    """/proc/net/unix shows it to all, and what ranks of root's leave behind is known by it."""
    argv = [SYSTEM_PYTHON, "-c", MARKED]
    with subprocess.Popen(
        argv, user=scene.bob.uid, group=scene.bob.gid, extra_groups=[], stdout=subprocess.PIPE, text=True
    ) as marked:
        assert marked.stdout is not None
        with RankProcesses(("/bin/sleep", "60"), {}, "/", "SOCKET"):
            name = marked.stdout.readline()
            started = time.monotonic()
        took_s = time.monotonic() - started
        left = processes.descendants(marked.pid)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        assert (name[:14], len(left)) == ("torchtune-sys-", 20) and took_s < 1.9, took_s


def test_a_family_is_ended_where_more_files_are_open_than_select_knows() -> None:
    """Of 56 ranks, each with its compilers, the handles alone are more than a thousand: select(2) takes no such number, and a login has no more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2048:
        pytest.skip("this user may not open enough files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, hard))
    with contextlib.ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        with RankProcesses(
            ("sh", "-c", "setsid sleep 60 & setsid sleep 60 & wait"), {"PATH": os.environ["PATH"]}, "/", "S"
        ) as ranks:
            while len(family := processes.descendants(ranks.launcher)) < 2:
                time.sleep(0.01)
        assert {processes.state(pid) for pid in family} <= {"", "Z"}


LIBRARY = """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
__attribute__((constructor)) static void leave_a_mark(void) {
    char mark[4096];
    snprintf(mark, sizeof mark, "%s/%d-%d", MARKS, geteuid(), getpid());
    close(open(mark, O_CREAT | O_WRONLY, 0644));
}
"""


@pytest.mark.parametrize("place", ["lib", "lib64"])
def test_a_library_of_another_user_s_in_an_environment_of_root_s(scene: Scene, place: str) -> None:
    """As conda lays them there, for packages that name them by their own place (RPATH); an archive that was unpacked by root keeps whose they were."""
    venv = scene.folder / "roots"
    packages = scene.alice.packages(venv)
    packages.mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "bin" / "python3").symlink_to(SYSTEM_PYTHON)
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    (venv / place).mkdir(exist_ok=True)
    library = venv / place / "libffi.so.8"
    built = ["gcc", "-shared", "-fPIC", f'-DMARKS="{scene.marks}"', "-x", "c", "-", "-o", str(library)]
    if shutil.which("gcc") is None or subprocess.run(built, input=LIBRARY, text=True).returncode:
        pytest.skip("no compiler of C")
    os.chown(library, scene.alice.uid, scene.alice.gid)
    (packages / "needs.pth").write_text(f"import ctypes; ctypes.CDLL({str(library)!r})\n")
    subprocess.run([str(venv / "bin" / "python3"), "-c", ""], check=True)
    assert scene.who_ran() == {0}, "it is no way in"
    as_root("check", "-q", "--python", str(venv))
    assert scene.who_ran() == {scene.alice.uid}


def test_what_is_no_library_makes_no_environment_another_user_s(scene: Scene) -> None:
    """/usr/local/lib/node_modules is often given to a user, and is below the prefix of the system's Python: with an environment of somebody else's, it was refused."""
    venv = scene.bob.venv()
    (venv / "lib" / "node_modules").mkdir()
    os.chown(venv / "lib" / "node_modules", scene.alice.uid, scene.alice.gid)
    for name in ("libx.so", "libx.so.1"):
        (venv / "lib" / name).symlink_to("libx.so.1.2")
        os.chown(venv / "lib" / name, scene.bob.uid, scene.bob.gid, follow_symlinks=False)
    scene.bob.write(venv / "lib" / "libx.so.1.2", "")
    found = examined.runner(str(venv / "bin" / "python3"))
    assert isinstance(found, Account) and found.uid == scene.bob.uid, found
    assert not [place for place in examined._places(str(venv / "bin" / "python3")) if "libx" in place], "they say nothing new"
    os.chown(venv / "lib" / "libx.so.1.2", scene.alice.uid, scene.alice.gid)
    assert isinstance(examined.runner(str(venv / "bin" / "python3")), Missing)


ANOTHER_NUMBER = "unshare -U --map-users=auto --map-groups=auto -S 0 -G 0 sh -c 'setsid sleep 54321 >/dev/null 2>&1 </dev/null & exec sleep 0.2'\n"


def end_those_of(first: int, last: int) -> list[int]:
    """Return the processes of these users that run, which are ended; not those that wait for the host's first process to reap them."""
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if first <= path.stat().st_uid <= last and "(zombie)" not in (path / "status").read_text():
                os.kill(int(path.name), signal.SIGKILL)
                found.append(int(path.name))
    return found


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_of_hers_stays_behind_under_another_of_her_numbers(scene: Scene, command: str) -> None:
    """Who may use containers has 65,536 numbers beside her own (/etc/subuid)."""
    if shutil.which("newuidmap") is None:
        pytest.skip("newuidmap is not installed")
    first = 1_000_000_000 + os.getpid() % 16384 * 65536  # apart from those of the tests beside this one
    numbers = f"{first}-{first + 65535}"
    subprocess.run(["usermod", "--del-subuids", "0-4294967294", scene.alice.name], capture_output=True)
    added = subprocess.run(["usermod", "--add-subuids", numbers, "--add-subgids", numbers, scene.alice.name], capture_output=True)
    venv = scene.alice.venv()
    leaves = scene.alice.write(scene.alice.home / "leaves", "#!/bin/sh\n" + ANOTHER_NUMBER, 0o755)
    by_hand = scene.alice.run([str(leaves)])
    if added.returncode or not end_those_of(first, first + 65535):
        pytest.skip(f"no user namespace for a user: {by_hand.stderr}")
    start = f"import subprocess; subprocess.run([{str(leaves)!r}])\n" + scene.payload() + "\n"
    scene.alice.write(scene.alice.packages(venv) / "leaves.pth", start)
    as_root(*command.split(), "--python", str(venv), timeout=200)
    assert scene.who_ran() == {scene.alice.uid}
    assert end_those_of(first, first + 65535) == []


def test_whom_the_first_line_of_root_s_own_file_names(scene: Scene) -> None:
    """A wrapper that is examined as Python, and a program of ``--site-checks``: what starts such a file is what its line names."""
    hers = scene.alice.write(scene.alice.home / "python", f'{scene.shell_payload()}shift\nexec {SYSTEM_PYTHON} "$@"\n', 0o755)
    checks = scene.folder / "checks"
    checks.mkdir()
    for path in (scene.folder / "python3", checks / "one"):
        path.write_text(f"#!{hers}\n")
        path.chmod(0o755)
        subprocess.run([str(path), "-c", ""])
    assert scene.who_ran() == {0}, "it is no way in"
    as_root("check", "-q", "--python", str(scene.folder / "python3"))
    assert scene.who_ran() == {scene.alice.uid}
    done = as_root("preflight", "--budget", "15", "--site-checks", str(checks))
    assert scene.who_ran() == set() and "not run as root" in " ".join(done.stdout.split())


def test_what_spares_root_s_session_from_the_oom_killer_is_not_handed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A unit's OOMScoreAdjust=, slurmd. A file stands for the kernel's: who may not lower the score, as in most containers, cannot try it."""
    score = tmp_path / "oom_score_adj"
    monkeypatch.setattr(account, "_OOM_SCORE", str(score))
    for before, meanwhile in (("-1000", "0"), ("-17", "0"), ("0", "0"), ("300", "300")):
        score.write_text(before)
        assert account.without_our_keys(score.read_text, lambda: False) == meanwhile
        assert score.read_text() == before


def test_a_process_that_keeps_its_memory_to_itself_is_left_behind_as_any_other(scene: Scene) -> None:
    """Its directory in /proc is root's then (prctl(2), PR_SET_DUMPABLE)."""
    left = scene.folder / "left.py"
    left.write_text(
        "import ctypes, os, time\nif os.fork() == 0:\n os.setsid()\n ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n print(os.getpid(), flush=True)\n os.close(1); os.close(2)\n time.sleep(60)\n"
    )
    pid = int(scene.alice.run([SYSTEM_PYTHON, str(left)]).stdout)
    try:
        wait_until = time.monotonic() + 5
        while processes.parent(pid) not in (1, 0) and time.monotonic() < wait_until:
            time.sleep(0.05)
        if processes.parent(pid) != 1:
            pytest.skip("somebody else adopts what is left here")
        assert pid in {one.pid for one in left_processes()}
    finally:
        os.kill(pid, signal.SIGKILL)
