"""Read what placing ranks needs beyond the facts that rules judge."""

from __future__ import annotations

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.placement import GpuDevice, PlacementFacts
from torchtune_sys.model.values import Missing, Why, fact, known, need
from torchtune_sys.probes.cpumask import read_set
from torchtune_sys.probes.topology import CPUS, core_sets

BOARDS = "/proc/driver/nvidia/gpus"
_PROGRAM_DIRS = ("/usr/bin", "/bin", "/usr/local/bin")


def probe(host: Host) -> PlacementFacts:
    allowed = host.ask(queries.MEMORY_POLICY)
    isolated = read_set(host, f"{CPUS}/isolated")
    return PlacementFacts(
        cores=core_sets(host),
        may_bind_memory=allowed if isinstance(allowed, (bool, Missing)) else _no_answer(allowed),
        numactl=_numactl(host),
        isolated=known(isolated, CpuSet()),
        boards=_boards(host),
    )


def _numactl(host: Host) -> bool | None:
    found = [host.exists(f"{place}/numactl") for place in _PROGRAM_DIRS]
    return True if True in found else False if all(there is False for there in found) else None


def _no_answer(found: object) -> Missing:
    return Missing(Why.UNPARSED, queries.MEMORY_POLICY, f"neither true nor false: {found!r:.60}")


@fact
def _boards(host: Host) -> Fact[tuple[GpuDevice, ...]]:
    """Those that this session may open: under Slurm the directory shows all of the host, and the device cgroup lets few through,
    which access(2) tells (fs/namei.c, inode_permission)."""
    names = need(host.names(BOARDS))
    found = []
    for name in names:
        text = host.text(f"{BOARDS}/{name}/information")
        if not isinstance(text, Missing):
            board, minor = parse_information(text, name)
            if minor is None or not _closed(host, f"/dev/nvidia{minor}"):
                found.append(board)
    return tuple(sorted(found, key=lambda board: board.address))


def _closed(host: Host, path: str) -> bool:
    access = host.ask(f"{queries.ACCESS}:{path}")
    return isinstance(access, dict) and not (access.get("read") and access.get("write"))


def parse_information(text: str, name: str) -> tuple[GpuDevice, int | None]:
    """Parse ``/proc/driver/nvidia/gpus/<address>/information``: the GPU, and the number of its device node.

    >>> parse_information("Model: \\t\\t NVIDIA L4\\nGPU UUID: \\t GPU-12ab\\nDevice Minor: \\t 3\\n", "0000:1b:00.0")
    (GpuDevice(address='0000:1b:00.0', name='NVIDIA L4', uuid='GPU-12ab'), 3)
    """
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip(), value.strip())
    uuid = fields.get("GPU UUID", "")
    board = GpuDevice(address=name.lower(), name=fields.get("Model", ""), uuid="" if "?" in uuid else uuid)
    return board, natural(fields.get("Device Minor", ""), 5)
