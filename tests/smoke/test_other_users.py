"""Another user of the host while a user's ranks train, started in each way: nothing of theirs can be read, changed or joined."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
import slurm_here

from conftest import TIER, exhaustive
from smoke.faults.bench import Bench, torch_python
from smoke.faults.forked import said
from smoke.faults.forking import FORKING
from smoke.faults.means import patched
from smoke.test_as_another_user import _torch
from torchtune_sys.model.rule import Verdict
from torchtune_sys.smoke.driver import ProgressListener, SmokeOptions, SmokeRun, _blame
from torchtune_sys.smoke.script import source
from torchtune_sys.smoke.watch import RunFailure, Watch, WatchedRank
from two_users import SYSTEM_PYTHON, Scene, needs_root

pytestmark = [needs_root, pytest.mark.long]
STAGES = "rendezvous,dataloader,checkpoint,checkpoint-sharded"  # which listen, and leave files
_PATIENCE_S = 300
_INTRUDER = Path(__file__).parent / "attacks/intruder.py"


@contextmanager
def watched(scene: Scene, temporary: Path, port: int = 0, secret: str = "", attacks: bool = False) -> Iterator[dict[str, Any]]:
    """What bob tried, and got of alice's, at the end of the block. ``secret``: looked for in command lines; ``attacks``: he speaks to every port of hers."""
    end, told = scene.folder / "end", dict[str, Any]()
    script = scene.bob.write(scene.bob.home / "intruder.py", _INTRUDER.read_text())
    words = [str(scene.alice.uid), f"{temporary}:/dev/shm", str(port), str(end), secret, "yes" if attacks else ""]
    bob = {"user": scene.bob.uid, "group": scene.bob.gid, "extra_groups": [scene.bob.gid]}
    with subprocess.Popen([SYSTEM_PYTHON, "-I", str(script), *words], **bob, stdout=subprocess.PIPE, cwd="/") as intruder:
        assert intruder.stdout is not None and intruder.stdout.readline() == b"ready\n"
        try:
            yield told
        finally:
            end.touch()
            found = intruder.communicate(timeout=60)[0]
            end.unlink()
    told |= json.loads(found)
    # torch makes this when it is imported, whoever does; the test's own compiled code goes to its scratch folder
    told["got"] = {what: found for what, found in told["got"].items() if not ("/torchinductor_" in what and found == "[]")}


def shared(folder: Path) -> Path:
    """As /tmp is: everybody's, and sticky."""
    place = folder / "tmp"
    place.mkdir()
    place.chmod(0o1777)
    return place


def _words(name: str, script: Path) -> list[str]:
    rank = [SYSTEM_PYTHON, str(script), "--device", "cpu", "--level", "quick", "--stages", STAGES]
    return {
        "by hand": [*rank, "--nproc-per-node", "2"],
        "torchrun": [SYSTEM_PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *rank[1:]],
        "mpirun": ["mpirun.openmpi", "--oversubscribe", "-n", "2", *rank],
        "mpiexec": ["mpiexec.hydra", "-n", "2", *rank],
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
    front = scene.alice.write(scene.alice.home / "forking" / "sitecustomize.py", FORKING if TIER != "all" else "").parent
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(scene.alice.home),
        "TMPDIR": str(temporary),
        "PYTHONPATH": f"{front}:{_torch()}",
    }
    return scene.alice.run(words, env={**env, **more}, cwd=scene.alice.home, timeout=_PATIENCE_S)


@pytest.mark.parametrize("name", ["by hand", "srun", *exhaustive("torchrun", "mpirun", "mpiexec")])
def test_another_user_reads_and_changes_nothing(scene: Scene, name: str) -> None:
    _torch()
    temporary = shared(scene.folder)
    with _surroundings(name) as found, watched(scene, temporary) as told:
        done = ran(scene, name, temporary, **found)
    assert done.returncode == 0 and "smoke test: pass, 2 rank" in done.stdout, done.stdout + done.stderr
    assert {"process", "list", "make"} <= {*told["tried"]}, told
    assert told["got"] == {}


def test_another_user_who_joins_the_meeting_of_srun_is_seen(scene: Scene) -> None:
    """torch's store asks nobody who they are, as in training; ranks of one host ask the kernel before anything is exchanged."""
    _torch()
    temporary = shared(scene.folder)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with _surroundings("srun") as found, watched(scene, temporary, port) as told:
        done = ran(scene, "srun", temporary, **found, **meeting)
    assert told["got"] == {f"port {port}": "joined"}, told
    assert done.returncode != 0 and "stranger-among-ranks" in done.stdout, done.stdout + done.stderr


@pytest.mark.exhaustive
def test_who_may_be_in_a_rank_s_place_leaves_the_host_undecided(tmp_path: Path) -> None:
    bench = Bench(tmp_path, torch_python())
    patched("""
        import os
        import torch.distributed as dist
        real, group = dist.init_process_group, dist.distributed_c10d._get_default_group
        def init(*args, **more):
            real(*args, **more)
            os.getuid = lambda: 12345  # as if its peers were none of this user's
            dist.distributed_c10d._get_default_group = silent
        def silent():
            dist.distributed_c10d._get_default_group = group
            raise RuntimeError("Timed out waiting 15000ms for recv operation to complete")
        dist.init_process_group = init
    """)(bench)
    outcome = bench.run("allreduce,checkpoint-sharded", 2)
    seen = outcome.stages["rendezvous"]
    assert (outcome.rc, seen["verdict"], seen["cause"]) == (3, "unknown", "stranger-among-ranks"), outcome.told
    assert re.search(r"127\.0\.0\.1 port \d+, of user 0", seen["seen"]) or os.getuid()
    assert outcome.verdicts["checkpoint-sharded"] == "unknown"


_PLANTED = """
import os
cache, user = %r, %d
places = ["/dev/shm/torch_%%d_%%s" %% (os.getpid(), os.urandom(4).hex()) for _ in range(3)]
default_cache = lambda: cache
def plant():
    for place in places:
        open(place, "w").close()
    os.mkfifo(cache + "/a.so")
    with open(cache + "/b.so", "wb") as file:
        file.write(b"\\x7fELF\\x02" + b"\\x01" * 59)
    os.utime(cache + "/b.so", (0, 0))
before = _shared_files()
if not os.fork():
    os.setuid(user)
    plant()
    os._exit(0)
os.wait()
try:
    print(os.path.exists(places[0]), _shared_files() - before, kept_code_is_whole(""))
    os.chown(cache, 0, 0)  # in their own cache it would be told
    kept_code_is_whole("")
except Exception as error:
    print(error.cause)
finally:
    for place in places:
        os.unlink(place)
"""


def test_what_another_user_lays_out_is_no_fault_of_the_training_s(scene: Scene) -> None:
    """Names in /dev/shm with a rank's number counted as files that training leaves behind; a folder in /tmp that anybody could make first, as the cache of
    torch.compile, in which a FIFO was waited for."""
    cache = scene.folder / "torchinductor_root"
    cache.mkdir()
    os.chown(cache, scene.bob.uid, scene.bob.gid)
    assert said(_PLANTED % (str(cache), scene.bob.uid)).splitlines() == ["True 0 None", "compile-cache-damaged"]


@pytest.mark.parametrize("kind", ["hung", "died"])
def test_ranks_that_hang_beside_a_stranger_leave_the_host_undecided(scene: Scene, kind: str) -> None:
    """Somebody who stays connected may hold what ranks wait for; nobody makes one die so."""
    asked = SmokeOptions(python="", ranks=1, cpus=1)
    run = SmokeRun(asked=asked, env={}, script=-1, folder="", until_s=0.0, found=(), progress=ProgressListener())
    watch = Watch.__new__(Watch)  # what ranks told: that this process is one, and which stages come
    watch.plan, watch.ranks = ("import", "rendezvous", "allreduce"), {os.getpid(): WatchedRank(os.getpid(), {"rank": 0})}
    failure = RunFailure(kind=kind, stage="allreduce", ranks=(0,))
    call = (
        "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); print(flush=True); sys.stdin.read()"
    )
    with socket.create_server(("127.0.0.1", 0)) as listening:
        assert run._strangers(watch, failure) == []
        words = [SYSTEM_PYTHON, "-I", "-c", call, str(listening.getsockname()[1])]
        alice = {"user": scene.alice.uid, "group": scene.alice.gid, "extra_groups": [scene.alice.gid]}
        with subprocess.Popen(words, **alice, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd="/") as caller:
            assert caller.stdout is not None and caller.stdout.readline() == b"\n"
            with listening.accept()[0]:
                found = run._strangers(watch, failure)
                assert run._strangers(watch, replace(failure, stage="import")) == []
            caller.communicate()
    _blame(run, failure, "", "", "", found)
    end = run.ends["allreduce"][0]
    assert (end.verdict is Verdict.UNKNOWN) == (end.cause == "stranger-among-ranks") == (kind == "hung"), end
    assert (f"of user {scene.alice.uid}" in end.seen) == (kind == "hung")
