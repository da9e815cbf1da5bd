"""The RDMA card nearest to a GPU."""

from __future__ import annotations

from collections.abc import Iterable

from torchtune_sys.formats.pci_paths import CLASSES
from torchtune_sys.model.facts.pci import PciDistance
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known


def nic(s: Snapshot, gpu: str) -> str:
    """Return the network card for a GPU; of equally near cards each GPU gets another."""
    found = () if isinstance(s.pci, Missing) or not gpu else known(s.pci.distances, ())
    mine = _nearest_cards(found, gpu)
    alike = sorted({item.gpu for item in found if _nearest_cards(found, item.gpu) == mine})
    return mine[alike.index(gpu) % len(mine)] if mine else ""


def _nearest_cards(found: Iterable[PciDistance], gpu: str) -> tuple[str, ...]:
    near = [item for item in found if item.gpu == gpu and item.rdma and item.path in CLASSES]
    best = min((CLASSES.index(item.path) for item in near), default=0)
    return tuple(sorted((item.rdma for item in near if item.path == CLASSES[best]), key=natural))


def natural(name: str) -> tuple[str, int]:
    """Return the key that sorts mlx5_2 before mlx5_10.

    >>> sorted(("mlx5_10", "mlx5_2"), key=natural)
    ['mlx5_2', 'mlx5_10']
    """
    digits = len(name) - len(name.rstrip("0123456789"))
    return name[: len(name) - digits], int(name[len(name) - digits :][:19] or 0)
