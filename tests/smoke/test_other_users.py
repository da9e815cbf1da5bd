"""Another user of the host while a user's ranks train, started in each way: nothing of theirs can be read, changed or joined."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
import slurm_here

from conftest import exhaustive
from smoke.test_as_another_user import _torch
from torchtune_sys.smoke.script import source
from two_users import SYSTEM_PYTHON, Scene, needs_root

pytestmark = [needs_root, pytest.mark.long]
STAGES = "rendezvous,allreduce,train,dataloader,checkpoint,checkpoint-sharded"
_PATIENCE_S = 300
_INTRUDER = """
import json, os, socket, stat, sys, time
victim, places, port, got, tried = int(sys.argv[1]), sys.argv[2].split(":"), int(sys.argv[3]), {}, set()
known = {place: set(os.listdir(place)) for place in places}
def attempt(what, do):
    tried.add(what.partition(" ")[0])
    try:
        found = do()
    except Exception:
        return
    got[what] = repr(found)[:80]
def read(path):
    with open(path, "rb") as file:
        return file.read(64)
def memory(path):
    found = read(path)
    if not found:
        raise OSError("it has ended")
    return found
def change(path):
    os.close(os.open(path, os.O_WRONLY))
def below(folder):
    attempt("list " + folder, lambda: os.listdir(folder))
    for place, _, names in os.walk(folder):
        for name in names:
            attempt("read " + os.path.join(place, name), lambda: read(os.path.join(place, name)))
            attempt("write " + os.path.join(place, name), lambda: change(os.path.join(place, name)))
def speak(name):
    with socket.socket(socket.AF_UNIX) as caller:
        caller.settimeout(2)
        caller.connect(name)
        caller.sendall(b'{"event": "end", "rank": 0, "stage": "train", "verdict": "pass", "seconds": 0}\\\\n')
        answer = caller.recv(1)
        if not answer:
            raise OSError("closed")
        return answer
print("ready", flush=True)
met = set()
while not os.path.exists(sys.argv[4]):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.stat("/proc/" + pid).st_uid != victim:
                continue
        except OSError:
            continue
        for name in ("environ", "mem", "maps"):
            attempt("process %s of %s" % (name, pid), lambda: memory("/proc/%s/%s" % (pid, name)))
        attempt("process fd of " + pid, lambda: os.listdir("/proc/%s/fd" % pid))
        for number in range(12):
            attempt("process fd %d of %s" % (number, pid), lambda: read("/proc/%s/fd/%d" % (pid, number)))
    for place in places:
        for name in set(os.listdir(place)) - known[place]:
            path = os.path.join(place, name)
            try:
                found = os.lstat(path)
            except OSError:
                continue
            if found.st_uid != victim:
                continue
            if stat.S_ISDIR(found.st_mode):
                below(path)
                attempt("make " + path, lambda: open(os.path.join(path, "x"), "w"))
            elif stat.S_ISREG(found.st_mode):
                attempt("read " + path, lambda: read(path))
                attempt("write " + path, lambda: change(path))
    for row in open("/proc/net/unix"):
        name = row.split()[-1]
        if name.startswith("@torchtune-sys-") and name not in met:
            met.add(name)
            attempt("speak " + name, lambda: speak("\\\\0" + name[1:]))
    if port:
        try:
            held = socket.create_connection(("127.0.0.1", port), 1)
            got["port %d" % port] = "joined"
            time.sleep(20)
        except OSError:
            pass
json.dump({"got": got, "tried": sorted(tried)}, sys.stdout)
"""


@contextmanager
def watched(scene: Scene, temporary: Path, port: int = 0) -> Iterator[dict[str, object]]:
    """What bob got of alice's, at the end of the block."""
    end, told = scene.folder / "end", dict[str, object]()
    bob = (scene.bob.uid, scene.bob.gid)
    argv = [
        SYSTEM_PYTHON,
        "-I",
        "-c",
        _INTRUDER.replace("\\\\", "\\"),
        str(scene.alice.uid),
        f"{temporary}:/dev/shm",
        str(port),
        str(end),
    ]
    with subprocess.Popen(argv, user=bob[0], group=bob[1], extra_groups=[bob[1]], stdout=subprocess.PIPE, cwd="/") as intruder:
        assert intruder.stdout is not None and intruder.stdout.readline() == b"ready\n"
        try:
            yield told
        finally:
            end.touch()
            said = intruder.communicate(timeout=60)[0]
    told |= json.loads(said)
    got = told["got"]
    assert isinstance(got, dict)
    # torch makes this when it is imported, whoever does; the test's own compiled code goes to its scratch folder
    told["got"] = {what: found for what, found in got.items() if not ("/torchinductor_" in what and found == "[]")}


def _shared(folder: Path) -> Path:
    """As /tmp is: everybody's, and sticky."""
    place = folder / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    return place


def _words(name: str, script: Path) -> list[str]:
    rank = [SYSTEM_PYTHON, str(script), "--device", "cpu", "--stages", STAGES]
    return {
        "by hand": [*rank, "--nproc-per-node", "2"],
        "torchrun": [SYSTEM_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *rank[1:]],
        "mpirun": ["mpirun.openmpi", "--oversubscribe", "-n", "2", *rank],
        "srun": ["srun", "-n", "2", *rank],
    }[name]


@contextmanager
def _surroundings(name: str) -> Iterator[dict[str, str]]:
    if name != "srun":
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="tts-") as folder:
        os.chmod(folder, 0o755)
        try:
            with slurm_here.cluster(Path(folder), "task/none", 4) as env:
                yield env
        except slurm_here.Unavailable as why:
            pytest.skip(f"no Slurm here: {why}")


def ran(scene: Scene, name: str, temporary: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The test that alice starts in one of the ways."""
    words = _words(name, scene.alice.write(scene.alice.home / "smoke.py", source()))
    if shutil.which(words[0]) is None:
        pytest.skip(f"{words[0]} is not installed")
    env = {"PATH": os.environ["PATH"], "HOME": str(scene.alice.home), "TMPDIR": str(temporary), "PYTHONPATH": str(_torch())}
    return scene.alice.run(words, env={**env, **more}, cwd=scene.alice.home, timeout=_PATIENCE_S)


@pytest.mark.parametrize("name", ["by hand", "srun", *exhaustive("torchrun", "mpirun")])
def test_another_user_reads_and_changes_nothing(scene: Scene, name: str) -> None:
    _torch()
    temporary = _shared(scene.folder)
    with _surroundings(name) as found, watched(scene, temporary) as told:
        done = ran(scene, name, temporary, **found)
    assert done.returncode == 0 and "smoke test: pass, 2 rank" in done.stdout, done.stdout + done.stderr
    assert {"process", "list", "make"} <= set(told["tried"]), told  # type: ignore[call-overload]
    assert told["got"] == {}


def test_another_user_who_joins_the_meeting_of_srun_is_seen(scene: Scene) -> None:
    """torch's store asks nobody who they are, as in training; ranks of one host ask the kernel before anything is exchanged."""
    _torch()
    temporary = _shared(scene.folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with _surroundings("srun") as found, watched(scene, temporary, port) as told:
        done = ran(scene, "srun", temporary, **found, **meeting)
    assert told["got"] == {f"port {port}": "joined"}, told
    assert done.returncode != 0 and "stranger-among-ranks" in done.stdout, done.stdout + done.stderr
