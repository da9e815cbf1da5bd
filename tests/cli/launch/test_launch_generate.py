"""``generate numactl`` and ``generate env`` in every format."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from driven import HOSTS, run

HEALTHY = str(HOSTS / "healthy.json")


@pytest.mark.parametrize("form", ["text", "commands", "wrapper", "json"])
def test_numactl_of_a_recorded_host(form: str) -> None:
    done = run("generate", "numactl", "--from", HEALTHY, "--format", form)
    assert (done.returncode, done.stderr) == (0, "")
    assert "12-15,44-47" in done.stdout
    if form == "json":
        seats = json.loads(done.stdout)["seats"]
        assert [seat["rank"] for seat in seats] == list(range(8))
        assert (seats[7]["cpus"], seats[7]["memory"], seats[7]["memory_node"], seats[7]["threads"]) == (
            "28-31,60-63",
            "bind",
            1,
            4,
        )


def test_torchrun_s_own_binding_stands_beside_the_table_where_torch_has_it() -> None:
    assert "torchrun --numa-binding=exclusive" in run("generate", "numactl", "--from", HEALTHY).stdout


def test_a_report_without_cores_places_nobody(tmp_path: object) -> None:
    done = run("generate", "numactl", "--from", "-", data="Collecting environment information...\nPyTorch version: 2.11.0\n")
    assert done.returncode == 2
    assert "ranks cannot be placed" in done.stderr


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("form", "wanted"),
    [
        ("shell", "export OMP_NUM_THREADS=4\n"),
        ("systemd", 'Environment="OMP_NUM_THREADS=4"\n'),
        ("slurm", "printf '%s\\n' 'export OMP_NUM_THREADS=4'\n"),
        ("docker", "OMP_NUM_THREADS=4\n"),
        ("kubernetes", "# to be chosen: 32 cores for 8 ranks, on the node; count the cores that the pod's limits give it"),
        ("json", '"OMP_NUM_THREADS"'),
    ],
)
@pytest.mark.parametrize("nodes", ["1", "4"])
def test_env_of_a_recorded_host(form: str, wanted: str, nodes: str) -> None:
    done = run("generate", "env", "--from", HEALTHY, "--workers", "0", "--nnodes", nodes, "--format", form)
    assert (done.returncode, done.stderr) == (0, "")
    assert wanted in done.stdout
    if form == "json":
        assert {"name", "value", "reason", "source", "sure"} <= set(json.loads(done.stdout)["variables"][0])


@pytest.mark.parametrize("installed", ["", "usr/bin", "usr/local/bin"])
@pytest.mark.parametrize("form", ["commands", "wrapper", "text", "json"])
def test_numactl_that_is_not_installed_is_missed(tmp_path: Path, installed: str, form: str) -> None:
    cpu = tmp_path / "sys/devices/system/cpu"
    cpu.mkdir(parents=True)
    (cpu / "online").write_text("0-3\n")
    (tmp_path / "proc").mkdir()
    if installed:
        (tmp_path / installed).mkdir(parents=True)
        (tmp_path / installed / "numactl").touch()
    done = run("generate", "numactl", "--root", str(tmp_path), "--nproc-per-node", "2", "--format", form)
    assert done.returncode == 0
    assert ("numactl is not installed here" in done.stderr) is (not installed and form in ("commands", "wrapper"))
