"""The lines of a ``collect_env`` report that say something, before they are interpreted.

All layouts since torch 1.0, and the longer ones of vLLM and SGLang. A line is found wherever its words stand: behind a
quote mark, a log's time stamp or a container's name. Nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from torchtune_sys.evidence import other_collectors
from torchtune_sys.evidence.partial import missing
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.python import Distribution, normalised
from torchtune_sys.model.patterns import pattern

_KEYS = (
    "PyTorch version", "Is debug build", "CUDA used to build PyTorch", "ROCM used to build PyTorch", "HIP used to build PyTorch", "XPU used to build PyTorch", "OS", "GCC version",
    "Libc version", "Python version", "Python platform", "Is CUDA available", "CUDA runtime version", "GPU models and configuration",
    "Nvidia driver version", "NVIDIA driver version", "HIP runtime version", "CPU(s)", "On-line CPU(s) list", "Off-line CPU(s) list", "Thread(s) per core", "Core(s) per socket",
    "Core(s) per cluster", "Cluster(s)", "Socket(s)", "Architecture", "Model name", "Vendor ID", "Hypervisor vendor", "Flags", "CUDA Driver Version", "PyTorch",
)  # fmt: skip
_NOTHING = frozenset(("", "n/a", "none", "could not collect", "no cuda", "unknown", "not available", "no relevant packages"))
_OF_ITS_OWN = frozenset(
    ("PyTorch version", "CUDA used to build PyTorch", "Nvidia driver version", "Is CUDA available", "Is debug build")
)
"""Lines that nothing but collect_env prints."""


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """What was recognised, before it is interpreted."""

    values: dict[str, str]
    """The first value of each key."""
    packages: tuple[Distribution, ...]
    gpus: tuple[str, ...]
    complaints: tuple[str, ...]
    env: dict[str, str]
    recognised: bool
    driver: tuple[str, str] = ("", "")
    """Driver version and its CUDA in a line copied out of nvidia-smi's head."""
    arches: tuple[str, ...] = ()
    """What torch's own configuration says that it has code for."""
    capabilities: dict[int, tuple[int, int]] = {}
    """Compute capability by the GPU's number."""


def parse_lines(text: str) -> Lines:
    """Find the lines that say something, in cleaned text.

    >>> found = parse_lines("> PyTorch version: 2.5.1+cu124\\n> GPU 0: NVIDIA L4\\n> [pip3] torch==2.5.1\\n")
    >>> found.values["PyTorch version"], found.gpus, found.packages[0].version
    ('2.5.1+cu124', ('NVIDIA L4',), '2.5.1')
    """
    keys = "|".join(re.escape(key) for key in sorted(_KEYS, key=len, reverse=True))
    keyed = re.compile(rf"^(?:.{{0,120}}?[\s>|\]])??({keys})(?: set to)?[ \t]*:+[ \t]*(.*)$")
    values: dict[str, str] = {}
    lines = text.split("\n")
    there = {key for key in _KEYS if key in text}
    for number, line in enumerate(lines):
        if ":" not in line or not there - values.keys():
            continue
        line = line[:20_000]
        if " " * 9 in line:  # a terminal padded it before the next one
            line = re.sub(r" {9,}", " " * 8, line)
        found = keyed.match(line)
        if found and found[1] not in values:
            values[found[1]] = found[2].strip()
            if found[1] == "Flags" and _wrapped(lines, number):
                values["Flags"] = ""
    others, gpus, arches = other_collectors.values(text)
    values = {**others, **values}
    env, shown = _environment(lines), tuple(_gpus(lines, values))
    if gpus and not shown and not _COUNTED.search(text):
        env.pop("CUDA_VISIBLE_DEVICES", None)
    return Lines(
        values=values,
        packages=tuple(_packages(lines)),
        gpus=shown or gpus,
        complaints=tuple(dict.fromkeys(_complaints(text, lines)))[:50],
        env=env,
        recognised=bool(_OF_ITS_OWN & values.keys()),
        driver=_driver_line(text),
        arches=arches,
        capabilities=other_collectors.capabilities(text),
    )


_COUNTED = pattern(r"- GPU number: \d|Device: cuda:|GPU \d")
"""Collectors that name the first GPU alone do not say how many there are."""


def _wrapped(lines: list[str], number: int) -> bool:
    """Whether a terminal broke the line: a flag may then be in two halves."""
    after = lines[number + 1].strip() if number + 1 < len(lines) else ""
    return bool(after) and ":" not in after and "=" not in after


_PLAIN = ("orch", "triton", "umpy", "umPy", "vllm", "nvidia-")
"""Of the names of packages that stand alone in a line."""


def _packages(lines: list[str]) -> Iterator[Distribution]:
    listed = re.compile(r"\[(pip3?|conda|pip\d\.\d+)\]\s+([A-Za-z0-9_-][\w.-]*)(?:==|\s+)(\d[\w.+!-]*)(?:\s+(\S+))?")
    printed = re.compile(
        r"(?:\btorch|\A(?:o?r)?ch)\.__version__\s*[:=]\s*['\"]?(\d[\w.+]*)"
    )  # what setup.py of an extension prints
    plain = re.compile(
        r"^[\s>|-]*(torch|[Tt]orch[Vv]ision|torchaudio|triton|[Nn]um[Pp]y|vllm|nvidia-[a-z0-9-]+)(?:==|:\s*|\s+)v?(\d[\w.+]*)(?: @\S+)?\s*$"
    )
    name = ""
    for line in lines:
        line = line[:1000]
        found = listed.search(line) if "[" in line and ("pip" in line or "conda" in line) else None
        if found:
            kind = "conda" if found[1] == "conda" else "pip"
            build = (found[4] or "") if kind == "conda" and not (found[4] or "").startswith("pypi") else ""
            yield Distribution(name=normalised(found[2]), version=found[3], location=kind, build=build)
            continue
        found = plain.match(line) if any(word in line for word in _PLAIN) else None
        if found:
            yield Distribution(name=normalised(found[1]), version=found[2], location="pip")
        elif "ch.__version__" in line and (found := printed.search(line)):
            yield Distribution(name="torch", version=found[1], location="pip")
        elif line.startswith("Name: "):
            name = normalised(line[6:].strip())
        elif name and line.startswith("Version: "):
            yield Distribution(name=name, version=line[9:].strip(), location="pip")
            name = ""


def _gpus(lines: list[str], values: dict[str, str]) -> Iterator[str]:
    numbered = re.compile(r"(?:^|[\s>|:])GPU (\d{1,3}): (.+?)\s*(?:\(UUID.*)?$")
    seen: dict[int, str] = {}
    for line in lines:
        found = numbered.search(line[:300]) if "GPU " in line else None
        if found and not re.match(r"X\b|\d", found[2]):
            seen.setdefault(int(found[1]), found[2])
    if seen:
        yield from (seen[number] for number in sorted(seen) if not _cut_short(seen[number], seen, lines))
        return
    alone = values.get("GPU models and configuration", "")
    if alone.lower() not in _NOTHING and not alone.startswith("GPU "):
        yield alone


def _cut_short(name: str, seen: dict[int, str], lines: list[str]) -> bool:
    """Whether the text ends within this name, as another's shows."""
    last = next((line for line in reversed(lines) if line.strip()), "")
    begun = name.rstrip(" .…")
    return last.rstrip().endswith(name) and any(other != name and other.startswith(begun) for other in seen.values())


_COMPLAINTS = (
    "driver on your system is too old",
    "forward compatibility was attempted",
    "cannot open shared object file",
    "undefined symbol",
    "cuDNN version incompatibility",
    "is not compatible with the current PyTorch installation",
    "no kernel image is available",
    "compiled with an unsupported toolchain",
    "requirement error: unsatisfied condition: cuda",
    "No matching distribution found for torch",
    "Found no NVIDIA driver on your system",
    "CUDA driver initialization failed",
    "CUDA initialization: CUDA unknown error",
    "CUDA initialization: Unexpected error from cudaGetDeviceCount",
    "cannot find -lcuda",
    "libcuda.so cannot found!",
    "nvcc was not found",
    "CUDA_HOME environment variable is not set",
    "CUDA_HOME does not exist, unable to compile",
    "Could not load library libcudnn",
    "Unable to load any of {libcudnn",
    "device kernel image is invalid",
)


def _complaints(text: str, lines: list[str]) -> Iterator[str]:
    """Sentences of the loader and of CUDA that name a fault of the environment."""
    glibc = re.compile(r"version [`'\u2018]?(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+['\u2019]? not found")
    sought = [words for words in _COMPLAINTS if words in text]
    for line in lines if sought or "not found" in text else ():
        line = line[:2000]
        if any(words in line for words in sought) or ("not found" in line and glibc.search(line)):
            yield re.sub(r"[`'\u2018]((?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)['\u2019]", r"`\1'", line.strip())[:400]


def _driver_line(text: str) -> tuple[str, str]:
    """Return a line of nvidia-smi's head, without the table around it.

    >>> _driver_line("Driver Version: 570.86.10     CUDA Version: 12.8")
    ('570.86.10', '12.8')
    """
    found = re.search(r"Driver Version: *(\d{3}\.\d+(?:\.\d+)?)(?:[ |]+CUDA Version: *(\d+\.\d+))?", text)
    return (found[1], found[2] or "") if found else ("", "")


def _environment(lines: list[str]) -> dict[str, str]:
    """vLLM ends with the environment variables that matter to it; CUDA_MODULE_LOADING, which CUDA itself sets, is always among them."""
    from torchtune_sys.evidence.assignments import assignments
    from torchtune_sys.host.environment import relevant

    whole = any("Environment Variables" in line or "ENV Variables" in line or "CUDA_MODULE_LOADING=" in line for line in lines)
    return relevant(assignments(lines, whole))


def value_of(lines: Lines, key: str) -> Fact[str]:
    """Return a key's value; NOT_RECORDED where the report does not give one."""
    value = lines.values.get(key, "")
    return missing() if value.lower() in _NOTHING else value
