"""Parse /proc/cpuinfo of each architecture: CPU model and instruction set."""

from __future__ import annotations

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

PATH = "/proc/cpuinfo"

_ARM = {
    ("0x41", "0xd03"): "Arm Cortex-A53",
    ("0x41", "0xd05"): "Arm Cortex-A55",
    ("0x41", "0xd07"): "Arm Cortex-A57",
    ("0x41", "0xd08"): "Arm Cortex-A72",
    ("0x41", "0xd09"): "Arm Cortex-A73",
    ("0x41", "0xd0a"): "Arm Cortex-A75",
    ("0x41", "0xd0b"): "Arm Cortex-A76",
    ("0x41", "0xd0c"): "Arm Neoverse-N1",
    ("0x41", "0xd0d"): "Arm Cortex-A77",
    ("0x41", "0xd40"): "Arm Neoverse-V1",
    ("0x41", "0xd41"): "Arm Cortex-A78",
    ("0x41", "0xd42"): "Arm Cortex-A78AE",
    ("0x41", "0xd44"): "Arm Cortex-X1",
    ("0x41", "0xd46"): "Arm Cortex-A510",
    ("0x41", "0xd47"): "Arm Cortex-A710",
    ("0x41", "0xd48"): "Arm Cortex-X2",
    ("0x41", "0xd49"): "Arm Neoverse-N2",
    ("0x41", "0xd4a"): "Arm Neoverse-E1",
    ("0x41", "0xd4b"): "Arm Cortex-A78C",
    ("0x41", "0xd4c"): "Arm Cortex-X1C",
    ("0x41", "0xd4d"): "Arm Cortex-A715",
    ("0x41", "0xd4e"): "Arm Cortex-X3",
    ("0x41", "0xd4f"): "Arm Neoverse-V2",
    ("0x41", "0xd80"): "Arm Cortex-A520",
    ("0x41", "0xd81"): "Arm Cortex-A720",
    ("0x41", "0xd82"): "Arm Cortex-X4",
    ("0x41", "0xd83"): "Arm Neoverse-V3AE",
    ("0x41", "0xd84"): "Arm Neoverse-V3",
    ("0x41", "0xd85"): "Arm Cortex-X925",
    ("0x41", "0xd87"): "Arm Cortex-A725",
    ("0x41", "0xd89"): "Arm Cortex-A720AE",
    ("0x41", "0xd8e"): "Arm Neoverse-N3",
    ("0x42", "0x516"): "Broadcom ThunderX2",
    ("0x43", "0x0a1"): "Cavium ThunderX-88XX",
    ("0x43", "0x0af"): "Marvell ThunderX2",
    ("0x43", "0x0b8"): "Marvell ThunderX3",
    ("0x46", "0x001"): "Fujitsu A64FX",
    ("0x46", "0x003"): "Fujitsu MONAKA",
    ("0x48", "0xd01"): "HiSilicon Kunpeng 920",
    ("0x48", "0xd02"): "HiSilicon Kunpeng 920",
    ("0x48", "0xd06"): "HiSilicon Kunpeng 950",
    ("0x4e", "0x003"): "NVIDIA Denver 2",
    ("0x4e", "0x004"): "NVIDIA Carmel",
    ("0x4e", "0x010"): "NVIDIA Olympus",
    ("0x50", "0x000"): "APM X-Gene",
    ("0x51", "0x001"): "Qualcomm Oryon",
    ("0x51", "0xc00"): "Qualcomm Falkor",
    ("0x61", "0x022"): "Apple Icestorm-M1",
    ("0x61", "0x023"): "Apple Firestorm-M1",
    ("0x61", "0x024"): "Apple Icestorm-M1-Pro",
    ("0x61", "0x025"): "Apple Firestorm-M1-Pro",
    ("0x61", "0x028"): "Apple Icestorm-M1-Max",
    ("0x61", "0x029"): "Apple Firestorm-M1-Max",
    ("0x61", "0x032"): "Apple Blizzard-M2",
    ("0x61", "0x033"): "Apple Avalanche-M2",
    ("0x6d", "0xd49"): "Microsoft Azure-Cobalt-100",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1a",
}
"""(implementer, part) as util-linux' lscpu names them (sys-utils/lscpu-arm.c): 64-bit Arm kernels print no model name."""


def parse_model(text: str) -> Fact[str]:
    """Return the processor's name.

    >>> parse_model("processor\\t: 0\\nmodel name\\t: AMD EPYC 7763 64-Core Processor\\n")
    'AMD EPYC 7763 64-Core Processor'
    >>> parse_model("processor\\t: 0\\ncpu\\t\\t: POWER9, altivec supported\\n")
    'POWER9'
    >>> parse_model("processor\\t: 0\\nCPU implementer\\t: 0x41\\nCPU part\\t: 0xd4f\\n")
    'Arm Neoverse-V2'
    >>> parse_model("CPU implementer\\t: 0x41\\nCPU part\\t: 0xd87\\n\\nCPU implementer\\t: 0x41\\nCPU part\\t: 0xd85\\n")
    'Arm Cortex-A725 + Arm Cortex-X925'
    >>> parse_model("processor\\t: 0\\nmmu\\t: sv39\\nuarch\\t: sifive,u74-mc\\n")
    'sifive,u74-mc'
    """
    fields = _first(text)
    # A kernel that runs 32-bit programs calls every Arm core "ARMv8 Processor rev 1 (v8l)": what is known of the parts is better.
    arm = [(fields.get("CPU implementer", ""), part) for part in sorted(core_kinds(text))]
    if arm and all(pair in _ARM for pair in arm):
        return " + ".join(sorted({_ARM[pair] for pair in arm}))[:200]
    for name in ("model name", "Model Name", "cpu", "Processor", "uarch", "family", "vendor_id", "vendor"):
        if fields.get(name):
            return " ".join(fields[name].removesuffix(", altivec supported").split())[:200]
    if arm and arm[0][0]:
        return " + ".join(_ARM.get(pair, f"Arm implementer {pair[0]} part {pair[1]}") for pair in arm)[:200]
    return Missing(Why.UNPARSED, PATH, "names no processor model")


def core_kinds(text: str) -> frozenset[str]:
    """Return the part numbers of the Arm cores, all of one implementer: GB10 has two kinds, a phone's chip up to four. Empty elsewhere."""
    if "CPU part" not in text[:8192] and "CPU part" not in text[-2048:]:
        return frozenset()
    return frozenset(part.strip() for part in _lines(text, "CPU part"))


def parse_processors(text: str) -> CpuSet:
    """Return the online processors, which each have an entry, on s390 a line; empty where the architecture does not number them.

    >>> parse_processors("processor\\t: 0\\n\\nprocessor\\t: 3\\n"), parse_processors("processor 8: version = 00,  machine = 2817\\n")
    (CpuSet('0,3'), CpuSet('8'))
    """
    numbers: list[str] = []
    for line in text.splitlines():
        name, _, value = line.partition(":")
        words = name.split()
        if words[:1] == ["processor"]:
            numbers.append(words[1] if len(words) == 2 else value.strip())
    return CpuSet(int(number) for number in numbers if number.isdecimal() and len(number) < 8)


def parse_flags(text: str) -> Fact[frozenset[str]]:
    """Return the instruction set flags that all processors have in common.

    >>> sorted(parse_flags("flags\\t\\t: sse4_1 avx avx2\\n\\nflags\\t\\t: sse4_1 avx\\n"))
    ['avx', 'sse4_1']
    """
    for label in ("flags", "Features", "features"):
        found: frozenset[str] | None = None
        for line in _lines(text, label):
            flags = frozenset(line.split())
            found = flags if found is None else found & flags
        if found is not None:
            return found
    return Missing(Why.NOT_SUPPORTED, PATH, "lists no instruction set flags on this architecture")


def _lines(text: str, label: str) -> set[str]:
    """Return the different values of one label: on most machines all processors say the same, so one line is parsed, not 256."""
    found: set[str] = set()
    for part in f"\n{text}".split(f"\n{label}")[1:]:
        line, _, _ = part.partition("\n")
        before, colon, value = line.partition(":")
        if colon and not before.strip():
            found.add(value)
    return found


def _first(text: str) -> dict[str, str]:
    """Return the fields of the first processor; Arm's and IBM's kernels put some of them after the last one."""
    fields: dict[str, str] = {}
    for line in (*text[:8192].splitlines(), *text[-2048:].splitlines()):
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), value.strip())
    return fields
