"""/proc/cpuinfo and /proc/meminfo as somebody pasted them."""

from __future__ import annotations

from torchtune_sys import evidence
from torchtune_sys.model.values import Missing

ONE = """processor\t: {}
vendor_id\t: AuthenticAMD
model name\t: AMD EPYC 9655 96-Core Processor
flags\t\t: fpu vme sse4_2 avx avx2 avx512f

"""
ARM = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes sve bf16
CPU implementer\t: 0x41

"""
MEMORY = "MemTotal:       24684092 kB\nMemFree:          912012 kB\nMemAvailable:   20012000 kB\nSwapTotal:       1048572 kB\nSwapFree:        1048572 kB\n"


def test_processors_are_counted_where_there_are_several() -> None:
    """Who pastes the first one alone has more."""
    for count in (1, 4):
        seen = evidence.read("".join(ONE.format(number) for number in range(count)), "x")
        assert seen is not None and not isinstance(seen.cpu, Missing)
        assert seen.cpu.model == "AMD EPYC 9655 96-Core Processor" and {"avx", "avx2"} <= seen.cpu.flags  # type: ignore[operator]
        assert isinstance(seen.cpu.online, Missing) if count == 1 else str(seen.cpu.online) == "0-3"


def test_an_arm_processor_has_no_lack_of_avx() -> None:
    seen = evidence.read(ARM, "x")
    assert seen is not None and not isinstance(seen.cpu, Missing) and isinstance(seen.cpu.flags, Missing)


def test_memory() -> None:
    seen = evidence.read(MEMORY, "x")
    assert seen is not None and not isinstance(seen.memory, Missing) and seen.origin == "report (files of /proc)"
    assert (seen.memory.total_bytes, seen.memory.available_bytes) == (24684092 * 1024, 20012000 * 1024)
    assert isinstance(seen.cpu, Missing)


def test_what_only_speaks_of_them_is_none_of_them() -> None:
    assert evidence.read("MemTotal is the sum\nprocessor : 0 is mine\n", "x") is None
