"""Read at which clock AMD's GPUs work (/sys/bus/pci/devices/*/pp_dpm_sclk and beside it)."""

from __future__ import annotations

from torchtune_sys.host.base import Host, interpreted
from torchtune_sys.model.facts.driver import AmdClock
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import absent
from torchtune_sys.probes.pci import probe as pci
from torchtune_sys.probes.pci.details import sleeps


def read(host: Host, addresses: tuple[str, ...]) -> tuple[AmdClock, ...]:
    """Return the clocks (Linux drivers/gpu/drm/amd/pm/amdgpu_pm.c); a GPU that sleeps is left alone, since reading would wake it."""
    found = (_of(host, address) for address in addresses if not sleeps(host, f"{pci.DEVICES}/{address}"))
    return tuple(clock for clock in found if not absent(clock.level) or not absent(clock.mhz))


def _of(host: Host, address: str) -> AmdClock:
    folder = f"{pci.DEVICES}/{address}"
    table = f"{folder}/pp_dpm_sclk"
    states = host.text(table)
    return AmdClock(
        address=address,
        level=host.word(f"{folder}/power_dpm_force_performance_level"),
        busy_pct=host.number(f"{folder}/gpu_busy_percent"),
        mhz=interpreted(states, lambda text: parse_states(text)[0], table),
        highest_mhz=interpreted(states, lambda text: parse_states(text)[1], table),
    )


def parse_states(text: str) -> tuple[int, int]:
    """Return the marked state and the highest one, MHz; ``S`` is one of deep sleep. Raises ValueError where none is marked.

    >>> parse_states("S: 61Mhz *\\n0: 132Mhz\\n1: 2100Mhz\\n")
    (61, 2100)
    """
    clocks: list[int] = []
    marked: int | None = None
    for line in text.splitlines():
        words = line.partition(":")[2].split()
        clock = natural(words[0].lower().removesuffix("mhz")) if words else None
        if clock is not None:
            clocks.append(clock)
            marked = clock if words[-1] == "*" else marked
    if marked is None:
        raise ValueError("no state is marked")
    return marked, max(clocks)
