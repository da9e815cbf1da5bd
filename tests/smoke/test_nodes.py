"""The worker over two hosts (network namespaces) below torchrun, and below srun alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import slurm_here

from conftest import exhaustive
from smoke.faults.bench import torch_python
from smoke.faults.forking import TRAINING, forking
from smoke.networks import ADDRESSES, PROPER, Host, two_hosts
from torchtune_sys.smoke.script import source

pytestmark = pytest.mark.long
STAGES = "allreduce,ddp,checkpoint-sharded"  # what the others exchange goes the same ways
PORT = 29811
LOOPBACK = "127.0.0.1 localhost\n127.0.1.1 node0 node1\n"
NAMELESS = "127.0.0.1 localhost\n"


@pytest.fixture
def hosts() -> Iterator[tuple[Host, Host]]:
    with two_hosts() as pair:
        yield pair


class Told(NamedTuple):
    """What the first rank printed, and how all ended."""

    text: str
    statuses: list[int]

    def stage(self, name: str) -> str:
        """Its line."""
        return next((line for line in self.text.splitlines() if line.split()[1:2] == [name]), "")

    def verdicts(self) -> dict[str, str]:
        found = re.findall(r"^(pass|fail|na|unknown) +(\S+) +[\d.]+ s", self.text, re.MULTILINE)
        return {stage: verdict for verdict, stage in found}


def run(commands: list[list[str]], tmp_path: Path, **env: str) -> Told:
    """All commands at once."""
    kept = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "OMP_NUM_THREADS": "1", **env}
    texts = []
    children = []
    for number, argv in enumerate(commands):
        with (tmp_path / f"said{number}").open("w") as said:
            children.append(subprocess.Popen(argv, env=kept, cwd=tmp_path, stdout=said, stderr=subprocess.STDOUT))
    for number, child in enumerate(children):
        try:
            child.wait(timeout=200)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        texts.append((tmp_path / f"said{number}").read_text())
    return Told("\n".join(texts), [child.returncode for child in children])


def worker(tmp_path: Path, stages: str) -> list[str]:
    (tmp_path / "smoke.py").write_text(source())
    (tmp_path / "scratch").mkdir()
    return [str(tmp_path / "smoke.py"), "--level", "quick", "--stages", stages, "--scratch", str(tmp_path / "scratch")]


def below_torchrun(
    tmp_path: Path, pair: tuple[Host, Host], stages: str, names: tuple[str, str], ranks: int = 1, **env: str
) -> Told:
    """torchrun on both hosts, which meet at the first one; ``names`` are their /etc/hosts."""
    torchrun = Path(torch_python()).with_name("torchrun")
    script = worker(tmp_path, stages)
    commands = []
    for host, text in zip(pair, names, strict=True):
        table = tmp_path / f"hosts{host.number}"
        table.write_text(text)
        meet = ["--nnodes", "2", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d", "--rdzv-id", "x"]
        meet += ["--rdzv-endpoint", f"{ADDRESSES[0]}:{PORT}", "--rdzv-conf", f"is_host={1 - host.number}"]
        commands.append(host.argv(table, str(torchrun), *meet, "--local-addr", ADDRESSES[host.number], *script))
    return run(commands, tmp_path, **{**forking(tmp_path, *(TRAINING if "ddp" in stages else ())), **env})


@pytest.mark.parametrize("ranks", [2, *exhaustive(1)])
def test_two_hosts_meet_and_train(hosts: tuple[Host, Host], tmp_path: Path, ranks: int) -> None:
    told = below_torchrun(tmp_path, hosts, STAGES, (PROPER, PROPER), ranks)
    assert told.statuses == [0, 0], told.text
    assert told.verdicts() == dict.fromkeys(["import", *told.verdicts()], "pass"), told.text
    assert set(STAGES.split(",")) <= told.verdicts().keys()
    assert f"ranks {2 * ranks} ; hosts 2" in told.stage("rendezvous")
    assert f"over {ADDRESSES[0]} (cable0)" in told.stage("rendezvous")
    assert f"{2 * ranks} rank(s)" in told.text


@pytest.mark.parametrize(
    ("names", "cause"),
    [
        pytest.param(LOOPBACK, "hostname-resolves-to-loopback", id="loopback"),
        pytest.param(NAMELESS, "hostname-unresolvable", id="none", marks=pytest.mark.exhaustive),
    ],
)
def test_hosts_whose_names_lead_nowhere(hosts: tuple[Host, Host], tmp_path: Path, names: str, cause: str) -> None:
    """gloo listens where the host's own name points: both at their loopback never meet."""
    told = below_torchrun(tmp_path, hosts, "allreduce", (names, names))
    assert told.statuses == [1, 1], told.text
    assert f"[{cause}]" in told.stage("rendezvous")
    assert told.verdicts()["allreduce"] == "unknown"


@pytest.mark.exhaustive
def test_one_host_at_its_loopback_is_no_fault_where_gloo_connects_from_it(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    """The side with the higher address opens the connection (gloo tcp/pair.cc): 127.0.1.1 is above 10.77.31.1."""
    told = below_torchrun(tmp_path, hosts, "allreduce", (PROPER, LOOPBACK))
    assert told.statuses == [0, 0], told.text


@pytest.mark.exhaustive
def test_the_loopback_as_gloos_interface(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    told = below_torchrun(tmp_path, hosts, "allreduce", (PROPER, PROPER), GLOO_SOCKET_IFNAME="lo")
    assert "[gloo-wrong-interface]" in told.stage("rendezvous"), told.text


def test_a_firewall_that_lets_only_the_meeting_through(hosts: tuple[Host, Host], tmp_path: Path) -> None:
    if shutil.which("iptables") is None:
        pytest.skip("needs iptables")
    script = worker(tmp_path, "allreduce")
    (tmp_path / "hosts").write_text(PROPER)
    commands = []
    for host in hosts:
        wall = ["iptables", "-A", "INPUT", "-i", host.interface, "-p", "tcp", "--syn", "!", "--dport", str(PORT), "-j", "DROP"]
        if subprocess.run(["ip", "netns", "exec", host.namespace, *wall], check=False, capture_output=True).returncode:
            pytest.skip("iptables does not work here")
        place = {"RANK": host.number, "WORLD_SIZE": 2, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": PORT}
        words = [f"{name}={value}" for name, value in place.items()]
        commands.append(host.argv(tmp_path / "hosts", "env", *words, f"MASTER_ADDR={ADDRESSES[0]}", torch_python(), *script))
    told = run(commands, tmp_path)
    assert "[firewall-blocks-nccl]" in told.stage("rendezvous"), told.text
    assert ADDRESSES[1] in told.stage("rendezvous")


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[dict[str, str]]:
    folder = tmp_path / "slurm"
    folder.mkdir()
    try:
        with slurm_here.cluster(folder, "task/none", 4) as env:
            yield env
    except slurm_here.Unavailable as why:
        pytest.skip(str(why))


def test_below_srun_without_torchrun(slurm: dict[str, str], tmp_path: Path) -> None:
    srun = ["srun", "--ntasks", "2", "--chdir", str(tmp_path), torch_python(), *worker(tmp_path, "allreduce,ddp")]
    told = run([srun], tmp_path, **slurm, MASTER_ADDR="127.0.0.1")
    assert told.statuses == [0], told.text
    assert "2 rank(s)" in told.text
    assert set(told.verdicts().values()) == {"pass"}, told.text


def test_below_srun_a_task_too_few_is_named(slurm: dict[str, str], tmp_path: Path) -> None:
    srun = ["srun", "--ntasks", "2", "--chdir", str(tmp_path), torch_python(), *worker(tmp_path, "allreduce"), "--world", "3"]
    told = run([srun], tmp_path, **slurm, MASTER_ADDR="127.0.0.1")
    assert "[wrong-world-size]" in told.text, told.text
    assert told.statuses == [1]
