"""Which CPUs serve a fast card's interrupts, as far as the kernel shows them."""

from __future__ import annotations

import pytest

from conftest import load
from torchtune_sys.model.values import Missing

BASE = "/sys/devices/pci0000:04/0000:04:00.0"


def seen(files: dict[str, object], speed: str = "25000") -> object:
    host = load("healthy", files={"/sys/class/net/eno1/speed": speed, **files})
    assert not isinstance(host.network, Missing)
    assert not isinstance(host.network.interfaces, Missing)
    return next(each for each in host.network.interfaces if each.name == "eno1").interrupt_cpus


def irqs(*cpus: object) -> dict[str, object]:
    return {
        **{f"{BASE}/msi_irqs/{9 + n}": "msix\n" for n in range(len(cpus))},
        **{f"/proc/irq/{9 + n}/effective_affinity_list": cpu for n, cpu in enumerate(cpus)},
    }


@pytest.mark.parametrize(
    ("cpus", "told"),
    [
        (("3\n", "16\n"), (3, 16)),
        (("3\n", "\n", "5\n"), (3, 5)),  # one that nobody has asked for
        (tuple(f"{n}\n" for n in range(12)), tuple(range(9))),  # 9 of them, in the order of their numbers
    ],
)
def test_cpus_of_the_first_interrupts(cpus: tuple[str, ...], told: tuple[int, ...]) -> None:
    assert seen(irqs(*cpus)) == told


def test_what_is_not_shown_is_missing() -> None:
    found = seen(irqs("3\n", {"error": "denied"}))
    assert isinstance(found, Missing) and found.why.value == "denied"
    without = irqs("3\n", {"error": "absent"})
    old = seen({**without, "/proc/irq/10/smp_affinity_list": "0-63\n"})
    assert isinstance(old, Missing) and old.why.value == "not-supported"
    masked = seen(without)
    assert isinstance(masked, Missing) and masked.why.value == "hidden"
    slow = seen(irqs("3\n"), "10000")
    assert isinstance(slow, Missing) and slow.why.value == "absent"
