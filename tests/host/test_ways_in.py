"""Ways in that a second look found: each first gets in by a plain start or the plain call, then fails against ours."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchtune_sys.host import slots
from torchtune_sys.host.account import account
from torchtune_sys.host.children.rank_processes import RankProcesses
from torchtune_sys.preflight.drain_limit import DrainLimit
from two_users import PROGRAM, SYSTEM_PYTHON, Scene, as_root, needs_root

REPO = Path(__file__).resolve().parent.parent.parent


@needs_root
def test_a_process_that_is_not_the_ranks_is_not_killed(scene: Scene) -> None:
    """Whoever connects and ends leaves a process number that somebody else's process may get."""
    alice = account(scene.alice.uid, scene.alice.gid)
    sleeper = "import time; time.sleep(600)"
    theirs = subprocess.Popen([SYSTEM_PYTHON, "-c", sleeper], user=scene.bob.uid, group=scene.bob.gid, extra_groups=[])
    hers = subprocess.Popen([SYSTEM_PYTHON, "-c", sleeper], user=alice.uid, group=alice.gid, extra_groups=[])
    ends = [socket.socketpair() for _ in range(2)]
    try:
        with RankProcesses(("/bin/sleep", "600"), {}, "/", "TEST_SOCKET", user=alice) as ranks:
            assert ranks.failure is None
            for (end, _), victim in zip(ends, (theirs, hers), strict=True):
                ranks._pids[end] = victim.pid
                ranks._stacks[victim.pid] = bytearray()
            ranks.stacks([theirs.pid], patience_s=0.2)
        assert hers.wait(30) in (-9, 0), "0: what is left of that user's is also waited for, by number"
        time.sleep(0.3)
        assert theirs.poll() is None
    finally:
        for child in (theirs, hers):
            child.kill()
            child.wait()
        for pair in ends:
            for end in pair:
                end.close()


RUBBISH = """
import os, socket
name = os.environ.get("TORCHTUNE_SYS_SMOKE_SOCKET")
if name:
    said = [b'{"event":"hello","role":"rank","rank":0}', b'{"a":' * 100000, b'{"event":"hello","role":"rank","rank":"x"}',
        b'{"event":"begin","deadline_s":"soon"}', b'{"event":"measure","value":{}}', b'{"event":"end","verdict":"splendid"}',
        b'{"event":"about","stages":7}', b'{"event":"exited","pid":[],"status":1e999}', b'[1]', b'\\xff\\x00']
    with socket.socket(socket.AF_UNIX) as s:
        s.connect("\\0" + name)
        s.sendall(b"\\n".join(said) + b"\\n")
    os._exit(3)
"""


@needs_root
def test_what_another_user_s_ranks_say_does_not_stop_us(scene: Scene) -> None:
    venv = scene.alice.venv()
    scene.alice.write(scene.alice.packages(venv) / "rubbish.pth", f"import os; exec({RUBBISH!r})\n")
    done = as_root("smoke", "--quick", "--device", "cpu", "--python", str(venv), timeout=300)
    assert done.returncode in (1, 3) and "internal error" not in done.stderr, done.stderr


@needs_root
@pytest.mark.parametrize("trap", ["link", "fifo", "escape"])
def test_what_lies_in_a_shared_slot_is_not_read_out(scene: Scene, trap: str) -> None:
    """Slots of the drain limit lie where all nodes write, and perhaps users."""
    secret = scene.folder / "secret"
    secret.write_text("root:$6$hash\n")
    secret.chmod(0o600)
    folder = scene.alice.home / "drain"
    folder.mkdir(mode=0o777)
    if trap == "link":
        scene.alice.link(folder / "slot-0", secret)
        with open(folder / "slot-0") as file:
            assert "hash" in file.read(), "a plain look reads it"
    elif trap == "fifo":
        os.mkfifo(folder / "slot-0", 0o666)
        os.chown(folder / "slot-0", scene.alice.uid, -1)
    else:
        scene.alice.write(folder / "slot-0", "\x1b]0;owned\x07")
    code = f"from torchtune_sys.host import slots; print(slots.take({str(folder)!r}, 'node1', 1, 3600.0))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd="/")
    assert done.stdout == "(True, ())\n", f"a place of another user's is nobody's: {done}"
    assert slots.take(str(folder), "node2", 1, 3600.0) == (False, ("node1",))
    assert slots.take(str(scene.alice.home / "well"), "node-1.example", 1, 3600.0) == (True, ())
    assert slots.take(str(scene.alice.home / "well"), "node-2", 1, 3600.0) == (False, ("node-1.example",))


@needs_root
def test_a_link_of_another_user_s_leads_no_slot_into_a_folder_of_root_s(scene: Scene) -> None:
    kept = scene.folder / "kept"
    kept.mkdir()
    state = scene.folder / "state"
    state.mkdir()
    state.chmod(0o1777)
    scene.alice.link(state / "all", kept)
    with open(state / "all" / "x", "w"):
        assert (kept / "x").exists(), "it is no way in"
    (kept / "x").unlink()
    assert DrainLimit(folder=str(state), nodes=2, window_s=60.0).hold("n1") is None, "it left the node in service"
    assert list(kept.iterdir()) == [] and os.listdir(state / "all") == ["slot-0"]
    assert (state / "all").lstat().st_uid == 0 and not (state / "all").is_symlink()
    (scene.folder / "own").symlink_to(state)
    assert DrainLimit(folder=str(scene.folder / "own"), nodes=2, window_s=60.0, domain="b").hold("n1") is None, "root's own link"
    assert os.listdir(state / "b") == ["slot-0"]


@needs_root
def test_a_folder_of_slots_that_a_user_made_first_is_not_the_one_in_which_root_takes_them(scene: Scene) -> None:
    """She would take away what root holds in it."""
    state = scene.folder / "state"
    state.mkdir()
    state.chmod(0o1777)
    scene.alice.write(state / "all" / "hers", "kept")
    assert DrainLimit(folder=str(state), nodes=1, window_s=60.0).hold("n1") is None
    scene.alice.run(["rm", "-rf", str(state / "all")])
    assert DrainLimit(folder=str(state), nodes=1, window_s=60.0).hold("n2") is not None, "a second node was called bad"
    (aside,) = state.glob(".of-others-*")
    assert (aside / "hers").read_text() == "kept"


@needs_root
def test_a_folder_of_slots_that_root_made_for_another_user_is_not_set_aside(scene: Scene) -> None:
    """As sites do for their scheduler's own user: nobody else could have made it there."""
    state = scene.folder / "state"
    scene.alice.write(state / "all" / "rack", "kept")
    os.chown(state, 0, 0)
    for mode in (0o755, 0o775):
        state.chmod(mode)  # root's own group is nobody else
        assert DrainLimit(folder=str(state), nodes=1, window_s=60.0).hold("n1") is None
        assert os.listdir(state) == ["all"] and (state / "all").stat().st_uid == scene.alice.uid
        assert sorted(os.listdir(state / "all")) == ["rack", "slot-0"]


SWAPS = """
import os, shutil, sys
place, kept = sys.argv[1:]
os.chdir(place)
def tried(call, *words):
    try: call(*words)
    except OSError: pass
while True:
    tried(os.mkdir, "all"); tried(os.rename, "all", "mine")
    tried(os.symlink, kept, "all"); tried(os.unlink, "all"); tried(os.rename, "mine", "all")
    shutil.rmtree("mine", ignore_errors=True)
    for name in os.listdir("all") if os.path.isdir("all") else ():
        if name[0] == ".":
            tried(os.unlink, "all/" + name); tried(os.symlink, kept + "/precious", "all/" + name)
"""


@needs_root
def test_a_folder_of_slots_that_its_owner_swaps_all_the_time_leads_root_nowhere(scene: Scene) -> None:
    kept = scene.folder / "kept"
    kept.mkdir()
    (kept / "precious").write_text("precious")
    place = scene.alice.home / "state"
    scene.alice.write(place / "all" / "x", "")
    words = [SYSTEM_PYTHON, "-c", SWAPS, str(place), str(kept)]
    racer = subprocess.Popen(words, user=scene.alice.uid, group=scene.alice.gid, extra_groups=[], stderr=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 3
        while time.monotonic() < until:
            DrainLimit(folder=str(place), nodes=1, window_s=0.001).hold("n1")
            info = (kept / "precious").stat()
            assert (os.listdir(kept), info.st_nlink, (kept / "precious").read_text()) == (["precious"], 1, "precious")
        assert racer.poll() is None, "nobody raced"
    finally:
        racer.kill()
        racer.wait()


@needs_root
def test_generated_scripts_start_no_program_of_another_user_s(scene: Scene) -> None:
    recording = REPO / "tests" / "hosts" / "swappiness-high.fail.json"
    script = scene.folder / "tune.sh"
    as_root("generate", "script", "--from", str(recording), "-o", str(script))
    folder = scene.alice.home / "bin"
    for tool in ("cat", "sha256sum", "stat", "readlink", "mkdir", "sysctl"):
        real = shutil.which(tool) or "/bin/false"
        scene.alice.write(folder / tool, scene.shell_payload() + f'exec {real} "$@"\n', 0o755)
    env = {**os.environ, "TORCHTUNE_SYS_STATE": str(scene.folder / "state"), "TORCHTUNE_SYS_LOG": str(scene.folder / "log")}
    for path in (f"{folder}:{env['PATH']}", f"../{folder.name}:{env['PATH']}"):
        subprocess.run(["/bin/sh", "-c", "cat /dev/null"], cwd=folder, env={**env, "PATH": path}, timeout=60)
        assert scene.who_ran() == {0}, "a plain script starts it"
        done = subprocess.run(
            ["bash", str(script), "--dry-run"],
            cwd=folder, env={**env, "PATH": path}, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert "nothing was changed" in done.stdout, done
        assert scene.who_ran() == set()


def checks_of_the_site(folder: Path, program: str) -> list[str]:
    place = folder / "checks"
    place.mkdir()
    place.chmod(0o755)
    (place / "a").write_text(program)
    (place / "a").chmod(0o755)
    return ["preflight", "--site-checks", str(place)]


TOKEN = "hf_" + "aBcDeFgHiJkLmNoPqRsTuVwXyZ012345"[:34]


@needs_root
@pytest.mark.parametrize("form", ["text", "json", "prometheus", "reason"])
def test_a_secret_that_a_site_s_program_prints_goes_no_further(scene: Scene, form: str) -> None:
    """All users read the reason why a node is drained (scontrol show node)."""
    words = checks_of_the_site(scene.folder, f"#!/bin/sh\necho 'cannot reach the hub with token {TOKEN}'\nexit 2\n")
    done = as_root(*words, "--format", form)
    assert TOKEN not in done.stdout + done.stderr
    assert form == "prometheus" or "cannot reach the hub" in " ".join(done.stdout.split())


@needs_root
def test_a_site_s_program_that_prints_nested_braces_is_unknown(scene: Scene) -> None:
    words = checks_of_the_site(scene.folder, f"#!{SYSTEM_PYTHON}\nprint('{{\"a\":' * 100000)\n")
    done = as_root(*words, "--format", "json")
    assert done.returncode in (1, 3) and "internal error" not in done.stderr, done.stderr
    assert "printed no valid JSON" in json.dumps(json.loads(done.stdout))


HOSTILE_TOML = {
    "nested": "a=" + "[" * 30000 + "]" * 30000,
    "inline": "a=" + "{a=" * 12000 + "1" + "}" * 12000,
    "dots": ".".join("a" * 32000) + "=1",
    "large": "# " + "x" * 100_000,
    "tables": "".join(f"[{'.'.join('a' * depth)}]\n" for depth in range(1, 250)),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("shape", HOSTILE_TOML)
@pytest.mark.parametrize("words", [("check", "-q", "--config"), ("preflight", "--policy")], ids=lambda words: words[0])
def test_a_configuration_takes_no_time_without_end(words: tuple[str, ...], shape: str, tmp_path: Path) -> None:
    place = tmp_path / "hostile.toml"
    place.write_text(HOSTILE_TOML[shape] + "\n")
    done = subprocess.run([*PROGRAM, *words, str(place)], capture_output=True, text=True, timeout=60, cwd="/")
    assert done.returncode == 2 and "hostile.toml" in done.stderr and "internal error" not in done.stderr, done.stderr


@needs_root
@pytest.mark.parametrize("way", ["link", "directory"])
def test_root_reads_nothing_for_a_user_that_they_may_not_read(scene: Scene, way: str) -> None:
    """What root's recording holds is given away; a link in an environment of theirs would put a file of root's into it."""
    safe = scene.folder / "safe"
    safe.mkdir(mode=0o755 if way == "link" else 0o700)
    secret = safe / "version.py"
    secret.write_text("__version__ = '2.9.0'\ncuda = 'only-root-may-read-this'\n")
    secret.chmod(0o600 if way == "link" else 0o644)
    venv = scene.alice.venv()
    packages = scene.alice.packages(venv)
    scene.alice.write(packages / "torch-2.9.0.dist-info" / "METADATA", "Name: torch\nVersion: 2.9.0\n")
    scene.alice.write(packages / "torch" / "__init__.py", "")
    if way == "link":
        scene.alice.link(packages / "torch" / "version.py", secret)
    else:
        shutil.rmtree(packages / "torch")
        scene.alice.link(packages / "torch", safe)
    assert "only-root" in (packages / "torch" / "version.py").read_text()
    assert scene.alice.run(["cat", str(packages / "torch" / "version.py")]).returncode != 0
    for words in (("record",), ("snapshot", "--format", "json"), ("check", "--format", "json")):
        assert "only-root" not in as_root(*words, "--python", str(venv)).stdout, words
    (packages / "torch").unlink() if way == "directory" else (packages / "torch" / "version.py").unlink()
    scene.alice.write(packages / "torch" / "version.py", "__version__ = '2.9.0'\ncuda = 'theirs-to-read'\n")
    assert "theirs-to-read" in as_root("record", "--python", str(venv)).stdout, "what they may read is read"


@pytest.mark.parametrize("words", [("sh",), ("--", "sh")], ids=["plain", "dashes"])
def test_a_program_that_is_launched_is_not_taken_for_a_reader(words: tuple[str, ...]) -> None:
    """One with an option --from was ended after 30 seconds, as a file that takes too long is; it would get its limits, too."""
    argv = [*PROGRAM, "launch", "--local-rank", "0", *words, "-c", "ulimit -d; echo $PPID", "sh", "--from", "x"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd="/") as started:
        told = started.communicate(timeout=60)[0].split()
    usual = subprocess.run(["sh", "-c", "ulimit -d"], capture_output=True, text=True, check=True).stdout.split()
    assert told == [*usual, str(os.getpid())], "it is the process that was started"


@pytest.mark.parametrize("limit", ["data", "cpu"])
def test_who_reads_a_stranger_s_file_has_a_limit_of_the_kernel_s(limit: str) -> None:
    """Below the limits of the readers, should one fail."""
    code = f"""
import os, resource, sys, time
from torchtune_sys.cli import watch
watch.LEAST_S, watch._SPARE_CPU_S = 90.0, -89  # one second of a processor, within the time that a busy machine may take for it
def run(_args):
    try:
        if {limit == "cpu"}:
            while True:
                pass
        kept = [bytes(1 << 20) for _ in range(1500)]
        os._exit(7)
    except MemoryError:
        os._exit(3)
sys.exit(watch.run_within_timeout(["check", "--from", "x", "--timeout", "60" if {limit == "data"} else "2"], run, lambda _seconds: 9))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == (3 if limit == "data" else 128 + 24), done.stderr


def test_a_fifo_in_a_directory_of_facts_is_not_waited_for(tmp_path: Path) -> None:
    """Each held up compare and fleet for 30 seconds, and there may be thousands."""
    (tmp_path / "a.json").write_text(json.dumps({"schema": "torchtune-sys/snapshot/1", "facts": {}}))
    for number in range(20):
        os.mkfifo(tmp_path / f"trap-{number}")
    done = subprocess.run([*PROGRAM, "compare", str(tmp_path)], capture_output=True, text=True, timeout=120, cwd="/")
    assert done.returncode == 3 and "is not a regular file" in " ".join(done.stdout.split()), done
