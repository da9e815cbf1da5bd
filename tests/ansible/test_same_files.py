"""One host out of tune, tuned in three ways, by ``apply``, by the generated script and by the role: the same files and values, byte for byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fleet
import pytest
from controller import Plays
from ssh_machines import Machine, machines
from test_actions import BOOT_LOADER, HARDWARE, TOOL

pytestmark = [pytest.mark.long, pytest.mark.exhaustive]

WRONG = {
    **fleet.WRONG,
    "/proc/sys/kernel/shmmax": "1000",
    "/proc/sys/vm/overcommit_memory": "2",
    "/proc/sys/net/ipv4/tcp_slow_start_after_idle": "1",
}
JOB = {"nproc_per_node": 8, "nnodes": 4}
WORDS = "--unsafe --nproc-per-node 8 --nnodes 4"


@pytest.fixture(scope="module")
def host(work: Path, bundle: Path) -> Iterator[tuple[Plays, Machine]]:
    with machines(work, {"host": "bookworm"}) as (controller, made):
        machine = made["host"]
        machine.work.joinpath("machine/hardware").write_text(HARDWARE)
        machine.root.joinpath("usr/sbin/update-grub").write_text(BOOT_LOADER)
        machine.sh("chmod 755 /usr/sbin/update-grub; mkdir -p /etc/default/grub.d")
        machine.restart()
        machine.root.joinpath(TOOL.lstrip("/")).write_bytes(bundle.read_bytes())
        machine.sh(f"chmod 755 {TOOL}")
        yield Plays(work, fleet.inventory(controller, made), controller), machine


def test_apply_script_and_role_leave_the_same(host: tuple[Plays, Machine]) -> None:
    plays, machine = host
    role = [
        {
            "hosts": "host",
            "gather_facts": False,
            "tasks": [{"include_role": {"name": "torchtune.sys.torchtune_sys", "tasks_from": "apply"}}],
        }
    ]
    variables: dict[str, Any] = {f"torchtune_sys_{name}": value for name, value in JOB.items()}

    def by_apply() -> str:
        return machine.sh(f"{TOOL} apply --yes {WORDS} || true")

    def by_script() -> str:
        return machine.sh(f"{TOOL} generate script {WORDS} >/root/script && bash /root/script")

    def by_role() -> str:
        played = plays.play(role, torchtune_sys_unsafe=True, torchtune_sys_local_facts=False, **variables)
        assert played.status == 0, played.output
        return played.output

    left: dict[str, tuple[dict[str, Any], dict[str, str]]] = {}
    for way, back in ((by_apply, f"{TOOL} undo --yes"), (by_script, "bash /root/script --undo"), (by_role, f"{TOOL} undo --yes")):
        fleet.detune(machine, WRONG)
        before = written(machine), fleet.values(machine)
        said = way()
        left[way.__name__] = written(machine), fleet.values(machine)
        files = fleet.differing(before[0], left[way.__name__][0])
        values = fleet.differing(before[1], left[way.__name__][1])
        print(f"{way.__name__}: {len(values)} values, {len(files)} files: {' '.join(sorted(files))}")
        assert len(values) >= len(WRONG) and len(files) >= 3, said
        machine.sh(back)
        assert fleet.differing(before[0], written(machine)) == {}
    first = left["by_apply"]
    for name, (files, values) in left.items():
        assert fleet.differing(first[0], files) == {}, name
        assert fleet.differing(first[1], values) == {}, name


def written(machine: Machine) -> dict[str, Any]:
    """What lies below /etc, by mode and hash."""
    return {path: state for path, state in fleet.disk(machine).items() if path.startswith("/etc/")}
