"""What ``python -m torch.utils.collect_env`` prints, as people paste it: all its layouts since torch 1.0, and the longer ones of vLLM and SGLang.

A line is found wherever its words stand: behind a quote mark, a log's time stamp or a container's name. Nothing here raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TypeVar

import msgspec

from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.cpu import CpuFacts
from torchtune_sys.model.facts.gpu import Gpu, GpuFacts
from torchtune_sys.model.facts.python import Distribution, LiveTorch, PythonFacts, Torch, normalised
from torchtune_sys.model.facts.system import Os, SystemFacts
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.model.version import version

T = TypeVar("T", bound=msgspec.Struct)
SOURCE = "report"
SIZE_LIMIT = 4 << 20
_KEYS = (
    "PyTorch version", "Is debug build", "CUDA used to build PyTorch", "ROCM used to build PyTorch", "HIP used to build PyTorch", "OS", "GCC version",
    "Libc version", "Python version", "Python platform", "Is CUDA available", "CUDA runtime version", "GPU models and configuration",
    "Nvidia driver version", "NVIDIA driver version", "HIP runtime version", "CPU(s)", "On-line CPU(s) list", "Thread(s) per core", "Core(s) per socket",
    "Socket(s)", "Model name", "Hypervisor vendor", "Flags", "CUDA Driver Version", "PyTorch",
)  # fmt: skip
_NOTHING = frozenset(("", "n/a", "none", "could not collect", "no cuda", "unknown", "not available", "no relevant packages"))
_OF_ITS_OWN = frozenset(
    ("PyTorch version", "CUDA used to build PyTorch", "Nvidia driver version", "Is CUDA available", "Is debug build")
)
"""Lines that nothing but collect_env prints."""
_OS_IDS = (
    ("Ubuntu", "ubuntu"), ("Debian", "debian"), ("Red Hat Enterprise Linux", "rhel"), ("CentOS", "centos"), ("Rocky Linux", "rocky"),
    ("AlmaLinux", "almalinux"), ("Fedora", "fedora"), ("Amazon Linux", "amzn"), ("openSUSE Leap", "opensuse-leap"), ("SUSE Linux Enterprise", "sles"),
    ("Oracle Linux", "ol"), ("Arch Linux", "arch"), ("Manjaro", "manjaro"), ("Pop!_OS", "pop"), ("Linux Mint", "linuxmint"), ("TencentOS", "tencentos"),
    ("Alibaba Cloud Linux", "alinux"), ("Gentoo", "gentoo"), ("Microsoft Windows", "windows"), ("macOS", "macos"), ("Mac OSX", "macos"),
)  # fmt: skip


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


def missing(detail: str = "not in the report") -> Missing:
    return Missing(Why.NOT_RECORDED, SOURCE, detail)


def partly(kind: type[T], **facts: object) -> T:
    """A family of which the report tells a few facts: the others NOT_RECORDED, texts that are no facts empty."""
    for field in msgspec.structs.fields(kind):
        if field.required:
            facts.setdefault(field.name, "" if field.type is str else missing())
    return kind(**facts)


def clean(text: str) -> str:
    """Without colours, carriage returns and what editors put in front of a file."""
    text = text[:SIZE_LIMIT].removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ")
    return re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text)


def parse_lines(text: str) -> Lines:
    """Find the lines that say something, in cleaned text.

    >>> found = parse_lines("> PyTorch version: 2.5.1+cu124\\n> GPU 0: NVIDIA L4\\n> [pip3] torch==2.5.1\\n")
    >>> found.values["PyTorch version"], found.gpus, found.packages[0].version
    ('2.5.1+cu124', ('NVIDIA L4',), '2.5.1')
    """
    keys = "|".join(re.escape(key) for key in sorted(_KEYS, key=len, reverse=True))
    keyed = re.compile(rf"^(?:.{{0,120}}?[\s>|\]])??({keys})(?: set to)?[ \t]*:[ \t]*(.*)$")
    values: dict[str, str] = {}
    lines = text.split("\n")[:50_000]
    for number, line in enumerate(lines):
        found = keyed.match(line[:20_000])
        if found and found[1] not in values:
            values[found[1]] = found[2].strip()
            if found[1] == "Flags" and _wrapped(lines, number):
                values["Flags"] = ""
    return Lines(
        values=values,
        packages=tuple(_packages(lines)),
        gpus=tuple(_gpus(lines, values)),
        complaints=tuple(dict.fromkeys(_complaints(lines)))[:50],
        env=_environment(lines),
        recognised=bool(_OF_ITS_OWN & values.keys()),
        driver=_driver_line(text),
    )


def _wrapped(lines: list[str], number: int) -> bool:
    """Whether a terminal broke the line: a flag may then be in two halves."""
    after = lines[number + 1].strip() if number + 1 < len(lines) else ""
    return bool(after) and ":" not in after and "=" not in after


def _packages(lines: list[str]) -> Iterator[Distribution]:
    listed = re.compile(r"\[(pip3?|conda|pip\d\.\d+)\]\s+([A-Za-z0-9][\w.-]*)(?:==|\s+)(\d[\w.+!-]*)(?:\s+(\S+))?")
    plain = re.compile(r"^[\s>|]*(torch|torchvision|torchaudio|triton|numpy|vllm|nvidia-[a-z0-9-]+)(?:==|\s+)v?(\d[\w.+]*)\s*$")
    name = ""
    for line in lines:
        line = line[:1000]
        found = listed.search(line)
        if found:
            kind = "conda" if found[1] == "conda" else "pip"
            build = (found[4] or "") if kind == "conda" and not (found[4] or "").startswith("pypi") else ""
            yield Distribution(name=normalised(found[2]), version=found[3], location=kind, build=build)
            continue
        found = plain.match(line)
        if found:
            yield Distribution(name=found[1], version=found[2], location="pip")
        elif line.startswith("Name: "):
            name = normalised(line[6:].strip())
        elif name and line.startswith("Version: "):
            yield Distribution(name=name, version=line[9:].strip(), location="pip")
            name = ""


def _gpus(lines: list[str], values: dict[str, str]) -> Iterator[str]:
    numbered = re.compile(r"(?:^|[\s>|:])GPU (\d{1,3}): (.+?)\s*(?:\(UUID.*)?$")
    seen: dict[int, str] = {}
    for line in lines:
        found = numbered.search(line[:300])
        if found and not re.match(r"X\b|\d", found[2]):
            seen.setdefault(int(found[1]), found[2])
    if seen:
        yield from (seen[number] for number in sorted(seen))
        return
    alone = values.get("GPU models and configuration", "")
    if alone.lower() not in _NOTHING and not alone.startswith("GPU "):
        yield alone


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
    "cannot find -lcuda",
    "libcuda.so cannot found!",
    "nvcc was not found",
    "CUDA_HOME environment variable is not set",
    "CUDA_HOME does not exist, unable to compile",
    "Could not load library libcudnn",
    "Unable to load any of {libcudnn",
    "device kernel image is invalid",
)


def _complaints(lines: list[str]) -> Iterator[str]:
    """Sentences of the loader and of CUDA that name a fault of the environment."""
    glibc = re.compile(r"version [`'\u2018]?(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+['\u2019]? not found")
    for line in lines:
        line = line[:2000]
        if any(words in line for words in _COMPLAINTS) or glibc.search(line):
            yield re.sub(r"[`'\u2018]((?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)['\u2019]", r"`\1'", line.strip())[:400]


def _driver_line(text: str) -> tuple[str, str]:
    """A line of nvidia-smi's head, without the table around it.

    >>> _driver_line("Driver Version: 570.86.10     CUDA Version: 12.8")
    ('570.86.10', '12.8')
    """
    found = re.search(r"Driver Version: *(\d{3}\.\d+(?:\.\d+)?)(?:[ |]+CUDA Version: *(\d+\.\d+))?", text)
    return (found[1], found[2] or "") if found else ("", "")


def _environment(lines: list[str]) -> dict[str, str]:
    """vLLM ends with the environment variables that matter to it; CUDA_MODULE_LOADING, which CUDA itself sets, is always among them."""
    from torchtune_sys.host.environment import relevant

    assigned = re.compile(r"^[\s>|]*([A-Z][A-Z0-9_]{2,60})=(.*)$")
    found = [match for line in lines if (match := assigned.match(line[:8000]))]
    env = relevant({match[1]: match[2].strip() for match in found})
    return (
        env
        if "CUDA_MODULE_LOADING" in env or any("Environment Variables" in line or "ENV Variables" in line for line in lines)
        else {}
    )


def told(lines: Lines, key: str) -> Fact[str]:
    """A key's value; NOT_RECORDED where the report does not give one."""
    value = lines.values.get(key, "")
    return missing() if value.lower() in _NOTHING else value


def _first(pattern: str, value: Fact[str]) -> Fact[str]:
    if isinstance(value, Missing):
        return value
    found = re.search(pattern, value)
    return found[1] if found else missing(f"not understood: {value[:60]!r}")


def system_facts(lines: Lines, text: str) -> SystemFacts:
    """The first lines, and the kind of machine: docker names a container's host after its id, which shows in the prompt."""
    platform = told(lines, "Python platform")
    kernel = _first(r"Linux-(.+)-(?:x86_64|aarch64|ppc64le|arm64)-with-", platform)
    vendor = told(lines, "Hypervisor vendor")
    hypervisor: Fact[str] = missing()
    if isinstance(kernel, str) and "microsoft" in kernel.lower():
        hypervisor = "wsl2"
    elif isinstance(vendor, str):
        hypervisor = {"kvm": "kvm", "xen": "xen", "microsoft": "microsoft", "vmware": "vmware"}.get(vendor.lower(), "other")
    return partly(
        SystemFacts,
        os=parse_os(told(lines, "OS")),
        kernel=kernel,
        machine=_first(r"-(x86_64|aarch64|ppc64le|arm64)-with-", platform),
        glibc=_first(r"glibc-?(\d+\.\d+)", told(lines, "Libc version")),
        hypervisor=hypervisor,
        container="docker" if re.search(r"\b[a-z_][\w-]{0,30}@[0-9a-f]{12}:", text) else missing(),
    )


def parse_os(value: Fact[str]) -> Fact[Os]:
    """The operating system of the first lines.

    >>> parse_os("Ubuntu 22.04.3 LTS (x86_64)").version
    '22.04'
    >>> parse_os("Microsoft Windows 11 Pro (10.0.26100 64-bit)").pretty_name
    'Microsoft Windows 11 Pro (not Linux)'
    """
    if isinstance(value, Missing):
        return value
    pretty = value.rpartition(" (")[0] or value
    found = next((name for words, name in _OS_IDS if value.startswith(words)), "")
    if not found:
        return missing(f"an operating system of its own: {value[:60]}")
    pretty += " (not Linux)" * (found in ("windows", "macos"))
    number = re.search(r"\d+(?:\.\d+)*", pretty)
    parts = number[0].split(".") if number else []
    kept = (
        parts[:2] if found in ("ubuntu", "pop", "linuxmint", "opensuse-leap", "sles", "rhel", "rocky", "almalinux") else parts[:1]
    )
    return Os(id=found, id_like=(), version=".".join(kept), pretty_name=pretty, codename="")


def cpu_facts(lines: Lines) -> Fact[CpuFacts]:
    """lscpu's block, where it is in English."""
    if "CPU(s)" not in lines.values and "Model name" not in lines.values:
        return missing()
    nothing = missing()
    sockets, cores, threads = (_number(told(lines, key)) for key in ("Socket(s)", "Core(s) per socket", "Thread(s) per core"))
    flags = told(lines, "Flags")
    return partly(
        CpuFacts,
        model=told(lines, "Model name"),
        online=_cpus(told(lines, "On-line CPU(s) list")),
        sockets=sockets,
        cores=cores * sockets if isinstance(cores, int) and isinstance(sockets, int) else nothing,
        smt=threads > 1 if isinstance(threads, int) else threads,
        flags=frozenset(flags.split()) if isinstance(flags, str) and {"fpu", "asimd"} & set(flags.split()) else nothing,
    )


def _number(value: Fact[str]) -> Fact[int]:
    if isinstance(value, Missing):
        return value
    return int(value) if value.isascii() and value.isdigit() and len(value) < 9 else missing(f"not a number: {value[:40]!r}")


def _cpus(value: Fact[str]) -> Fact[CpuSet]:
    if isinstance(value, Missing):
        return value
    try:
        return CpuSet.parse(value[:2000])
    except ValueError as error:
        return missing(str(error)[:100])


def gpu_facts(lines: Lines) -> GpuFacts | None:
    """The GPUs as collect_env lists them; None where it says nothing of any."""
    driver = _first(r"(\d+\.\d+(?:\.\d+)?)", told(lines, "Nvidia driver version"))
    if isinstance(driver, Missing):
        driver = _first(r"(\d+\.\d+(?:\.\d+)?)", told(lines, "NVIDIA driver version"))
    if isinstance(driver, Missing) and lines.driver[0]:
        driver = lines.driver[0]
    supported = _found_version(lines.complaints) or lines.driver[1]
    if not lines.gpus and isinstance(driver, Missing) and not supported:
        return None
    amd = any("AMD" in name or "gfx" in name or "Radeon" in name for name in lines.gpus) or _unnamed_amd(lines, driver)
    return GpuFacts(
        driver_version=driver,
        cuda_driver_version=supported or missing(),
        library_version=missing(),
        devices=tuple(Gpu(index=index, name=name) for index, name in enumerate(lines.gpus)) if lines.gpus else missing(),
        vendor="amd" if amd else "nvidia",
        source=SOURCE,
    )


def _unnamed_amd(lines: Lines, driver: Fact[str]) -> bool:
    """Whether the GPUs of a ROCm build have but an AMD device number for a name: "Device 66a1" (github.com/pytorch/pytorch/pull/44106)."""
    build = told(lines, "ROCM used to build PyTorch")
    return (
        not isinstance(build, Missing) and isinstance(driver, Missing) and all(name.startswith("Device ") for name in lines.gpus)
    )


def _found_version(complaints: tuple[str, ...]) -> str:
    """The driver's CUDA in torch's refusal.

    >>> _found_version(("The NVIDIA driver on your system is too old (found version 11040).",))
    '11.4'
    """
    for line in complaints:
        found = re.search(r"found version (\d{4,6})\)", line)
        if found:
            return f"{int(found[1]) // 1000}.{int(found[1]) % 1000 // 10}"
    return ""


def python_facts(lines: Lines) -> PythonFacts:
    torch = torch_facts(lines)
    nothing = missing()
    conda = any(item.location == "conda" for item in lines.packages)
    distributions = lines.packages if lines.packages else nothing
    return PythonFacts(
        executable=nothing,
        version=_first(r"^(\d+\.\d+(?:\.\d+)?)", told(lines, "Python version")),
        implementation=nothing,
        machine=_first(r"-(x86_64|aarch64|ppc64le|arm64)-with-", told(lines, "Python platform")),
        glibc=_first(r"-with-glibc(\d+\.\d+)", told(lines, "Python platform")),
        distributions=distributions,
        torch=torch,
        live=live_facts(lines, torch),
        nvcc=_first(r"^(\d+\.\d+(?:\.\d+)?)", told(lines, "CUDA runtime version")),
        library_path=tuple(filter(None, lines.env["LD_LIBRARY_PATH"].split(":"))) if "LD_LIBRARY_PATH" in lines.env else nothing,
        complaints=lines.complaints,
        conda=True if conda else nothing,
    )


def torch_facts(lines: Lines) -> Fact[Torch]:
    listed = next((item.version for item in lines.packages if item.name == "torch"), "")
    named = told(lines, "PyTorch version")
    found = listed if isinstance(named, Missing) else named.split()[0]
    if not version(found):
        asked = "PyTorch version" in lines.values
        return Missing(Why.ABSENT, SOURCE, "torch could not be imported there") if asked and not listed else missing()
    cuda, hip = told(lines, "CUDA used to build PyTorch"), told(lines, "ROCM used to build PyTorch")
    not_built = Missing(Why.ABSENT, SOURCE, "not a CUDA build")
    if isinstance(cuda, Missing) and ("CUDA used to build PyTorch" in lines.values or "+cpu" in found or "+rocm" in found):
        cuda = (
            not_built
            if "Could not collect" not in lines.values.get("CUDA used to build PyTorch", "")
            or "+cpu" in found
            or _no_gpu_build(lines)
            else cuda
        )
    debug = lines.values.get("Is debug build", "").lower()
    return Torch(
        version=found,
        location="report",
        cuda=cuda if isinstance(cuda, Missing) else _first(r"^(\d+\.\d+)", cuda),
        hip=Missing(Why.ABSENT, SOURCE, "not a ROCm build")
        if isinstance(hip, Missing) and not isinstance(cuda, Missing)
        else hip,
        xpu=missing(),
        debug=debug in ("true", "yes") if debug in ("true", "false", "yes", "no") else missing(),
        arch_list=missing(),
        nccl=_library(lines, "nvidia-nccl", cuda),
        cudnn=_library(lines, "nvidia-cudnn", cuda),
        source=SOURCE,
    )


def _no_gpu_build(lines: Lines) -> bool:
    """Whether "Could not collect" stands for torch.version.cuda = None of a CPU-only build, as it does until torch 1.13.

    Before 1.7 no line told of ROCm: there an NVIDIA driver must say that the build is not for AMD GPUs
    (torch/utils/collect_env.py at v1.3.1 and v1.7.1; github.com/pytorch/pytorch/issues/44303).
    """
    unavailable = lines.values.get("Is CUDA available", "").strip().lower() in ("no", "false")
    named = not isinstance(told(lines, "PyTorch version"), Missing)
    if "ROCM used to build PyTorch" in lines.values:
        return unavailable and named and isinstance(told(lines, "ROCM used to build PyTorch"), Missing)
    return unavailable and named and not isinstance(told(lines, "Nvidia driver version"), Missing)


def _library(lines: Lines, name: str, cuda: Fact[str]) -> Fact[str]:
    major = "" if isinstance(cuda, Missing) else cuda.partition(".")[0]
    found = next((item.version for item in lines.packages if item.name in (name, f"{name}-cu{major}")), None)
    return found if found is not None else missing()


def live_facts(lines: Lines, torch: Fact[Torch]) -> Fact[LiveTorch]:
    """collect_env imports torch, so what it says of CUDA is what torch itself saw."""
    said = lines.values.get("Is CUDA available", "").lower()
    if said not in ("true", "false", "yes", "no"):
        return missing()
    nothing = missing()
    return LiveTorch(
        version="" if isinstance(torch, Missing) else torch.version,
        cuda_available=said in ("true", "yes"),
        device_count=nothing,
        arch_list=nothing,
        cudnn=nothing,
        nccl=nothing,
        tf32_matmul=nothing,
        tf32_cudnn=nothing,
        bf16_native=nothing,
        num_threads=nothing,
        cpu_capability=nothing,
    )
