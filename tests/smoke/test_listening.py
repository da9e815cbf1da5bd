"""Nobody but this user speaks to the ranks of a smoke test: not another host, not another user of this one."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import torchtune_sys
from conftest import exhaustive
from smoke.faults.bench import Bench, torch_python
from smoke.faults.forked import said
from smoke.faults.forking import TRAINING, forking
from smoke.faults.means import patched
from smoke.listening import Watch, listened, outside_loopback, traced
from smoke.networks import ADDRESSES, PROPER, Host, ip, two_hosts
from torchtune_sys.smoke.script import source

STAGES = "dataloader,allreduce,checkpoint-sharded"  # which shards a model by FSDP, and saves beside training
PATIENCE_S = 120
PORTS = ("29800", "30199")
"""Where an attacked host has all its ports: those that a command line names, and from 30000 those that its kernel gives."""
BY_HAND = ["--device", "cpu", "--nproc-per-node", "2", "--stages", "rendezvous"]


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as pair:
        yield pair


@pytest.fixture
def names(tmp_path: Path) -> Path:
    """An /etc/hosts for both."""
    place = tmp_path / "hosts"
    place.write_text(PROPER)
    return place


class Attack:
    """The second host attacks the first."""

    def __init__(self, pair: tuple[Host, Host], names: Path, folder: Path) -> None:
        self.marker, self._stop = folder / "marker", folder / "stop"
        few = "echo 30000 30199 >/proc/sys/net/ipv4/ip_local_port_range"
        subprocess.run(["ip", "netns", "exec", pair[0].namespace, "sh", "-c", few], check=True, timeout=20)
        words = [
            torch_python(),
            str(Path(__file__).parent / "attacks/store_attack.py"),
            ADDRESSES[0],
            str(self.marker),
            str(self._stop),
            *PORTS,
        ]
        env = {"PATH": os.environ["PATH"], "TORCH_CPP_LOG_LEVEL": "ERROR"}
        self._child = subprocess.Popen(
            pair[1].argv(names, *words), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def ports(self) -> list[int]:
        """Those that were open to it, of PORTS; what listens at others the watch sees."""
        self._stop.touch()
        output, errors = self._child.communicate(timeout=PATIENCE_S)
        assert self._child.returncode == 0, errors
        return list(ast.literal_eval(output))


def left_behind(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(("torchelastic_", "torchtune-sys-", "smoke-"))]


@pytest.mark.exhaustive
def test_torchrun_runs_the_code_of_another_host(hosts: tuple[Host, Host], names: Path, tmp_path: Path) -> None:
    """How the smoke test began its ranks before. Without it the tests below could not fail."""
    (tmp_path / "sleep.py").write_text("import time\ntime.sleep(600)\n")
    words = [torch_python(), "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1", str(tmp_path / "sleep.py")]
    attack = Attack(hosts, names, tmp_path)
    with Watch(hosts[0].namespace) as watch:
        child = subprocess.Popen(hosts[0].argv(names, *words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            until = time.monotonic() + PATIENCE_S
            while not attack.marker.exists() and time.monotonic() < until and child.poll() is None:
                time.sleep(0.2)
        finally:
            child.terminate()
            child.wait(timeout=60)
    ports = attack.ports()
    assert attack.marker.read_text() == f"{os.getuid()}\n"
    found = {int(address.rpartition(":")[2]) for address in outside_loopback([*watch.seen])}
    assert ports and set(ports) <= found


@pytest.mark.long
@pytest.mark.parametrize("options", [("--master-port", "29811"), *exhaustive(())])
def test_another_host_finds_no_port(hosts: tuple[Host, Host], names: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    bench = Bench(tmp_path, torch_python())
    bench.before = hosts[0].argv(names)
    bench.options += ["--quick", *options]
    bench.env |= forking(tmp_path, *TRAINING)
    attack = Attack(hosts, names, tmp_path)
    with Watch(hosts[0].namespace) as watch:
        outcome = bench.run(STAGES, 2)
    assert outcome.rc == 0, outcome.told
    assert attack.ports() == []
    assert not attack.marker.exists()
    assert watch.seen and outside_loopback([*watch.seen]) == []  # gloo listens on the loopback: more would have been seen, too
    assert left_behind(tmp_path) == []


@pytest.mark.exhaustive  # a few stages of a test by hand are traced like this in CI
def test_no_process_listens_outside_the_loopback(tmp_path: Path) -> None:
    """All calls of a whole quick test, at a port that was named."""
    bench = Bench(tmp_path, torch_python())
    bench.before = traced(tmp_path / "log")
    port = _free_port()
    bench.options += ["--quick", "--master-port", str(port)]
    outcome = bench.run("", 2)
    assert outcome.rc == 0, outcome.told
    found = listened(tmp_path / "log")
    assert outside_loopback(found) == []
    assert f"127.0.0.1:{port}" in found and len(found) > 2  # the ranks' own


@pytest.mark.long
def test_by_hand_no_process_listens_outside_the_loopback(tmp_path: Path) -> None:
    (tmp_path / "smoke.py").write_text(source())
    argv = [*traced(tmp_path / "log"), torch_python(), str(tmp_path / "smoke.py"), *BY_HAND]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "TMPDIR": str(tmp_path), **forking(tmp_path)}
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    found = listened(tmp_path / "log")
    assert found and outside_loopback(found) == []
    assert left_behind(tmp_path) == []


@pytest.mark.long
def test_a_loopback_of_ipv6_alone_will_do(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    first = hosts[0]
    ip("-n", first.namespace, "addr", "del", "127.0.0.1/8", "dev", "lo")
    names = tmp_path / "hosts"
    names.write_text("::1 localhost node0\n")
    bench = Bench(tmp_path, torch_python())
    bench.before = first.argv(names, *traced(tmp_path / "log"))
    bench.options += ["--master-port", "29811"]
    bench.env |= forking(tmp_path)
    outcome = bench.run("rendezvous", 2)
    assert outcome.rc == 0, outcome.told
    assert "over ::1 (lo)" in outcome.stages["rendezvous"]["seen"]
    found = listened(tmp_path / "log")
    assert "[::1]:29811" in found and outside_loopback(found) == []


@pytest.mark.long
@pytest.mark.parametrize(
    ("bare", "rc", "cause"), [(False, 0, ""), pytest.param(True, 1, "gloo-wrong-interface", marks=pytest.mark.exhaustive)]
)
def test_an_interface_that_somebody_chose_is_looked_at_and_not_listened_on(
    hosts: tuple[Host, Host], names: Path, tmp_path: Path, bare: bool, rc: int, cause: str
) -> None:
    first = hosts[0]
    if bare:
        ip("-n", first.namespace, "addr", "flush", "dev", first.interface)
    bench = Bench(tmp_path, torch_python())
    bench.before = first.argv(_loopback_names(tmp_path) if bare else names, *traced(bench.folder / "log"))
    bench.env |= {"GLOO_SOCKET_IFNAME": first.interface, **forking(tmp_path)}
    outcome = bench.run("rendezvous", 2)
    assert (outcome.rc, outcome.stages["rendezvous"]["cause"]) == (rc, cause), outcome.told
    assert outside_loopback(listened(bench.folder / "log")) == []


def _loopback_names(folder: Path) -> Path:
    place = folder / "loopback"
    place.write_text("127.0.0.1 localhost node0\n")
    return place


def _free_port() -> int:
    import socket

    with socket.socket() as trial:
        trial.bind(("127.0.0.1", 0))
        return int(trial.getsockname()[1])


_INTRUDER = """
import os, socket, struct, sys, time
held, met = [], set()
print("ready", flush=True)
while True:  # whoever says a number that a rank of gloo waits for is that rank
    time.sleep(0.003)
    for line in open("/proc/net/tcp"):
        words = line.split()
        if words[3] == "0A" and words[1].startswith("0100007F") and words[7] == sys.argv[1] and words[1] not in met:
            met.add(words[1])
            for number in range(4):
                try:
                    caller = socket.create_connection(("127.0.0.1", int(words[1].partition(":")[2], 16)), 1)
                    if sys.argv[2:] != ["silent"]:
                        caller.sendall(struct.pack("=q", number))
                    held.append(caller)
                except OSError:
                    pass
"""
_AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
_RANK = """
import datetime, json, os, sys, time
import torch.distributed as dist
namespace = {"__name__": "interfaces"}
exec(compile(open(sys.argv[1]).read(), "interfaces.py", "exec"), namespace)
rank, store = int(sys.argv[2]), dist.FileStore(sys.argv[3], 2)
os.environ["GLOO_SOCKET_IFNAME"] = "lo"
for turn in range(20):  # which of two ranks waits for the other one's call is a matter of chance
    if rank:
        store.wait([str(turn)])
        time.sleep(0.3)
    else:
        store.set(str(turn), "")
    dist.init_process_group("gloo", store=dist.PrefixStore("%d" % turn, store), rank=rank, world_size=2)
    store.set("%d by %d" % (turn, rank), json.dumps(namespace["strangers"](0.5)))
    seen = [json.loads(store.get("%d by %d" % (turn, each))) for each in range(2)]
    if any(seen):
        print(json.dumps(seen), flush=True)
        break
    dist.destroy_process_group()
os._exit(0)
"""


@pytest.mark.long
def test_another_user_who_takes_a_rank_s_place_is_seen(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """gloo asks nobody who they are. Any user reaches the loopback: here one of their own, as whoever is at work beside this test would
    have a stranger among the ranks, too, and no room in the queue of what listens."""
    if not shutil.which("setpriv") or not os.path.exists("/usr/bin/python3"):
        pytest.skip("needs setpriv, to act as another user, and a /usr/bin/python3 that all users can start")
    text = (Path(torchtune_sys.__file__).parent / "smoke" / "worker" / "interfaces.py").read_text()
    (tmp_path / "interfaces.py").write_text(text)
    (tmp_path / "rank.py").write_text(_RANK)
    inside = ["ip", "netns", "exec", hosts[0].namespace]
    words = [*inside, torch_python(), str(tmp_path / "rank.py"), str(tmp_path / "interfaces.py")]
    argv = [*inside, *_AS_NOBODY, "/usr/bin/python3", "-c", _INTRUDER, "0"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd="/") as intruder:
        assert intruder.stdout is not None and intruder.stdout.readline() == b"ready\n"
        ranks = [subprocess.Popen([*words, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE) for rank in range(2)]
        said = [rank.communicate(timeout=PATIENCE_S)[0] for rank in ranks]
        intruder.kill()
    assert b"of user 65534" in said[0], said


_BUSY = """
import socket, sys, time
class Slow(socket.socket):
    def listen(self, *room):
        super().listen(*room)
        time.sleep(0.3)  # what a busy machine makes of the time until the next call
namespace = {"__name__": "starting"}
exec(compile(open(sys.argv[1]).read(), "starting.py", "exec"), namespace)
socket.socket = Slow
print(namespace["_no_loopback"]())
"""


def test_who_knocks_at_every_port_does_not_take_the_loopback_down(hosts: tuple[Host, Host]) -> None:
    """Four callers at each port as soon as it listens: more than a queue of 1 holds."""
    inside = ["ip", "netns", "exec", hosts[0].namespace, sys.executable, "-I"]
    starting = Path(torchtune_sys.__file__).parent / "smoke" / "worker" / "starting.py"
    with subprocess.Popen([*inside, "-c", _INTRUDER, "0"], stdout=subprocess.PIPE, cwd="/") as intruder:
        assert intruder.stdout is not None and intruder.stdout.readline() == b"ready\n"
        done = subprocess.run([*inside, "-c", _BUSY, str(starting)], capture_output=True, text=True, timeout=60)
        intruder.kill()
    assert done.stdout == "None\n", done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.parametrize("how", ["numbers", *exhaustive("silent")])
def test_another_user_of_the_host_makes_no_healthy_host_fail(
    hosts: tuple[Host, Host], names: Path, tmp_path: Path, how: str
) -> None:
    """Who stays connected does no harm; who takes a rank's place is told, and then it is not known how the host is. Before, both were failures of the host."""
    bench = Bench(tmp_path, torch_python())
    bench.before = hosts[0].argv(names)
    bench.env |= forking(tmp_path)
    argv = ["ip", "netns", "exec", hosts[0].namespace, *_AS_NOBODY, "/usr/bin/python3", "-c", _INTRUDER, str(os.getuid()), how]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd="/") as intruder:
        assert intruder.stdout is not None and intruder.stdout.readline() == b"ready\n"
        outcome = bench.run("allreduce", 2)
        intruder.kill()
    told = {stage["cause"] for stage in outcome.stages.values()} - {""}
    if how == "silent":
        assert (outcome.rc, told) == (0, set()), outcome.told
    else:  # which of two ranks takes the other one's call is a matter of chance, and so is who is first
        assert (outcome.rc, told) in ((0, set()), (3, {"stranger-among-ranks"})), outcome.told


@pytest.mark.long
@pytest.mark.parametrize("method", ["forkserver", *exhaustive("spawn")])
def test_workers_that_are_not_forked_find_the_script(tmp_path: Path, method: str) -> None:
    """The script is a descriptor of the rank, which these do not inherit."""
    bench = Bench(tmp_path, torch_python())
    patched(f"import multiprocessing\nmultiprocessing.set_start_method({method!r}, force=True)", when="torch.utils.data")(bench)
    bench.options += ["--quick"]
    outcome = bench.run("dataloader", 1)
    assert outcome.verdicts["dataloader"] == "pass", outcome.told
    assert outcome.stages["device"]["cause"] == "torch-setting-changed"  # that somebody chose it is told there


@pytest.mark.long
def test_a_checkpoint_goes_where_no_link_can_wait_for_it(tmp_path: Path) -> None:
    """Below a launcher the directory is everybody's /tmp."""
    (tmp_path / "smoke.py").write_text(source())
    for rank in range(2):
        (tmp_path / f"checkpoint-{rank}.pt").symlink_to(tmp_path / "victim")
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "RANK": "0",
        "WORLD_SIZE": "1",
        "OMP_NUM_THREADS": "1",
    }
    argv = [torch_python(), str(tmp_path / "smoke.py"), "--device", "cpu", "--stages", "checkpoint", "--level", "quick"]
    done = subprocess.run(argv, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (tmp_path / "victim").exists()


@pytest.mark.long
def test_a_terminal_s_interrupt_ends_a_test_by_hand(tmp_path: Path) -> None:
    bench = Bench(tmp_path, torch_python())
    patched("import time, torch\ntorch.Tensor.__matmul__ = lambda *args: time.sleep(1000)")(bench)
    (tmp_path / "smoke.py").write_text(source())
    words = [torch_python(), str(tmp_path / "smoke.py"), "--device", "cpu", "--nproc-per-node", "2", "--stages", "gemm"]
    child = subprocess.Popen(words, env=bench.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until = time.monotonic() + PATIENCE_S
    while bench.rank(1) is None and time.monotonic() < until:
        time.sleep(0.1)
    child.send_signal(2)
    output, _ = child.communicate(timeout=60)
    assert child.returncode == -2 and "Traceback" not in output, output
    assert bench.processes() == {}


def test_nothing_that_a_peer_says_is_unpickled() -> None:
    """No collective that exchanges objects but where torch makes plain ones only, no pickle; what torch.load reads are tensors."""
    names = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve"}
    for path in Path(torchtune_sys.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                writes = (
                    {"marshal"} if path.name in ("launching.py", "own_modules.py") else set()
                )  # the second: the tool's byte code, as Python's import reads it
                assert (names - writes).isdisjoint(alias.name.partition(".")[0] for alias in node.names), path
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "marshal":
                assert node.attr == "dumps" or path.name == "own_modules.py", (
                    path
                )  # what ranks run is sealed, and inherited from who wrote it
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").partition(".")[0] not in names, path
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                called = node.func.attr
                assert not called.endswith(("_object", "_object_list")) or path.name == "collective_table.py", (path, called)
                if called == "load" and isinstance(node.func.value, ast.Name) and node.func.value.id == "torch":
                    safe = [word.value for word in node.keywords if word.arg == "weights_only"]
                    assert [ast.unparse(value) for value in safe] == ["True"], path


PLAIN = """
import pickle
import torch
import torch.distributed as dist

class Hostile:
    def __reduce__(self):
        return print, ("unpickled",)

def made_of(sent):
    data = pickle.dumps(sent)
    taken = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    return dist.distributed_c10d._tensor_to_object(taken, len(data), None)

with plain_objects_only():
    assert made_of([{"rank": 1, "words": ["a"]}, 2.5, None]) == [{"rank": 1, "words": ["a"]}, 2.5, None]
    try:
        made_of(Hostile())
    except ValueError as error:
        print("refused:", error)
made_of(Hostile())
"""


def test_a_collective_of_objects_makes_plain_ones_only() -> None:
    """Outside it torch calls what the pickle names; inside, it is refused."""
    told = ["refused: another rank sent builtins.print, which is no plain object", "unpickled"]
    assert said(PLAIN).splitlines() == told
