"""What ``python -m torch.utils.collect_env`` prints, as people paste it, as facts. Nothing here raises."""

from __future__ import annotations

import re
from collections.abc import Iterator

from torchtune_sys.evidence.partial import SOURCE, missing, partly
from torchtune_sys.evidence.report_lines import Lines, value_of
from torchtune_sys.formats import hypervisors
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import Gpu, GpuFacts
from torchtune_sys.model.facts.python import LiveTorch, PythonFacts, Torch
from torchtune_sys.model.facts.system import Os, SystemFacts
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.model.version import version

_OS_IDS = (
    ("Ubuntu", "ubuntu"), ("Debian", "debian"), ("Red Hat Enterprise Linux", "rhel"), ("CentOS", "centos"), ("Rocky Linux", "rocky"),
    ("AlmaLinux", "almalinux"), ("Fedora", "fedora"), ("Amazon Linux", "amzn"), ("openSUSE Leap", "opensuse-leap"), ("SUSE Linux Enterprise", "sles"),
    ("Oracle Linux", "ol"), ("Arch Linux", "arch"), ("Manjaro", "manjaro"), ("Pop!_OS", "pop"), ("Linux Mint", "linuxmint"), ("TencentOS", "tencentos"),
    ("Alibaba Cloud Linux", "alinux"), ("Gentoo", "gentoo"), ("Microsoft Windows", "windows"), ("macOS", "macos"), ("Mac OSX", "macos"),
    ("openEuler", "openeuler"), ("Kylin Linux", "kylin"), ("Anolis OS", "anolis"), ("openSUSE Tumbleweed", "opensuse-tumbleweed"), ("NixOS", "nixos"),
    ("Alpine Linux", "alpine"), ("Microsoft Azure Linux", "azurelinux"), ("CBL-Mariner", "mariner"), ("Common Base Linux Mariner", "mariner"),
    ("EndeavourOS", "endeavouros"), ("Garuda Linux", "garuda"), ("CachyOS", "cachyos"), ("Kali GNU/Linux", "kali"), ("Flatcar", "flatcar"), ("Bottlerocket", "bottlerocket"),
)  # fmt: skip


_WITH_MINOR = frozenset(
    [
        "ubuntu",
        "pop",
        "linuxmint",
        "opensuse-leap",
        "sles",
        "rhel",
        "rocky",
        "almalinux",
        "openeuler",
        "anolis",
        "nixos",
        "alpine",
        "azurelinux",
        "mariner",
    ]
)
_MACHINE = "(?:x86_64|aarch64|ppc64le|arm64)"
_PROCESSOR = r"(?:[^\s]{1,100}-)?"
"""What Gentoo's and Arch's uname -p adds (CPython Lib/platform.py, platform())."""


def _first(pattern: str, value: Fact[str]) -> Fact[str]:
    if isinstance(value, Missing):
        return value
    found = re.search(pattern, value)
    return found[1] if found else missing(f"not understood: {value[:60]!r}")


_OLDEST_LIBC = (2, 12)
"""RHEL 6. platform.libc_ver() of Pythons up to 3.8 takes the newest symbol that the interpreter itself needs: 2.2.5, 2.9 or 2.10, where it was
built on an old system (https://github.com/python/cpython/issues/87414); no torch runs on a host with so old a glibc."""


def _libc(pattern: str, value: Fact[str]) -> Fact[str]:
    """
    >>> _libc(r"glibc-?(\\d+\\.\\d+)", "glibc-2.35"), isinstance(_libc(r"glibc-?(\\d+\\.\\d+)", "glibc-2.2.5"), Missing)
    ('2.35', True)
    """
    found = _first(pattern, value)
    if isinstance(found, Missing) or version(found) >= _OLDEST_LIBC:
        return found
    return missing(f"glibc {found} is the interpreter's minimum, not the host's version")


def system_facts(lines: Lines, text: str) -> SystemFacts:
    """Return the first lines, and the kind of machine: docker names a container's host after its id, which shows in the prompt."""
    platform = value_of(lines, "Python platform")
    kernel = _first(rf"Linux-(.+?)-{_MACHINE}-{_PROCESSOR}with-", platform)
    vendor = value_of(lines, "Hypervisor vendor")
    hypervisor: Fact[str] = missing()
    if isinstance(kernel, str) and "microsoft" in kernel.lower():
        hypervisor = "wsl2"
    elif isinstance(vendor, str):
        hypervisor = hypervisors.meant(vendor)
    return partly(
        SystemFacts,
        os=parse_os(value_of(lines, "OS")),
        kernel=kernel,
        machine=_first(rf"-({_MACHINE})-{_PROCESSOR}with-", platform),
        glibc=_libc(r"glibc-?(\d+\.\d+)", value_of(lines, "Libc version")),
        hypervisor=hypervisor,
        container="docker" if re.search(r"\b[a-z_][\w-]{0,30}@[0-9a-f]{12}:", text) else missing(),
    )


def parse_os(value: Fact[str]) -> Fact[Os]:
    """Return the operating system of the first lines.

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
    kept = parts[:2] if found in _WITH_MINOR else parts[:1]
    return Os(id=found, id_like=(), version=".".join(kept), pretty_name=pretty, codename="")


def gpu_facts(lines: Lines) -> GpuFacts | None:
    """Return the GPUs as collect_env lists them; None where it says nothing of any."""
    driver = _first(r"(\d+\.\d+(?:\.\d+)?)", value_of(lines, "Nvidia driver version"))
    if isinstance(driver, Missing):
        driver = _first(r"(\d+\.\d+(?:\.\d+)?)", value_of(lines, "NVIDIA driver version"))
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
        devices=tuple(_listed(lines)) if lines.gpus else missing(),
        some_only=lines.gpus == (lines.values.get("GPU models and configuration"),),
        vendor="amd" if amd else "nvidia",
        source=SOURCE,
    )


def _listed(lines: Lines) -> Iterator[Gpu]:
    for index, name in enumerate(lines.gpus):
        yield Gpu(index=index, name=name, compute_capability=lines.capabilities.get(index, missing()))


def _unnamed_amd(lines: Lines, driver: Fact[str]) -> bool:
    """Whether the GPUs of a ROCm build have but an AMD device number for a name: "Device 66a1" (github.com/pytorch/pytorch/pull/44106)."""
    build = value_of(lines, "ROCM used to build PyTorch")
    return (
        not isinstance(build, Missing) and isinstance(driver, Missing) and all(name.startswith("Device ") for name in lines.gpus)
    )


def _found_version(complaints: tuple[str, ...]) -> str:
    """Return the driver's CUDA in torch's refusal.

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
        version=_first(r"^(\d+\.\d+(?:\.\d+)?(?:(?:a|b|rc)\d+)?)", value_of(lines, "Python version")),
        implementation=nothing,
        machine=_first(rf"-({_MACHINE})-{_PROCESSOR}with-", value_of(lines, "Python platform")),
        glibc=_libc(r"-with-glibc(\d+\.\d+)", value_of(lines, "Python platform")),
        distributions=distributions,
        torch=torch,
        live=live_facts(lines, torch),
        nvcc=_first(r"^(\d+\.\d+(?:\.\d+)?)", value_of(lines, "CUDA runtime version")),
        library_path=tuple(filter(None, lines.env["LD_LIBRARY_PATH"].split(":"))) if "LD_LIBRARY_PATH" in lines.env else nothing,
        linkable=nothing,
        deepspeed_operators=nothing,
        bitsandbytes_builds=nothing,
        complaints=lines.complaints,
        conda=True if conda else nothing,
    )


def torch_facts(lines: Lines) -> Fact[Torch]:
    listed = next((item.version for item in lines.packages if item.name == "torch"), "")
    named = value_of(lines, "PyTorch version")
    found = listed if isinstance(named, Missing) else named.split()[0]
    if not version(found):
        asked = "PyTorch version" in lines.values
        return Missing(Why.ABSENT, SOURCE, "torch could not be imported there") if asked and not listed else missing()
    cuda, hip = value_of(lines, "CUDA used to build PyTorch"), value_of(lines, "ROCM used to build PyTorch")
    if isinstance(hip, Missing) and "+rocm" in found:  # as wheels of PyTorch's index are called
        hip = _first(r"\+rocm(\d+\.\d+)", found)
    not_built = Missing(Why.ABSENT, SOURCE, "not a CUDA build")
    debug = lines.values.get("Is debug build", "").lower()
    flags = ("true", "false", "yes", "no")
    imported = not isinstance(named, Missing) or debug in flags  # else "N/A" stands for what nobody could ask
    if isinstance(cuda, Missing) and ("CUDA used to build PyTorch" in lines.values or "+cpu" in found or "+rocm" in found):
        cuda = (
            not_built
            if (imported and "Could not collect" not in lines.values.get("CUDA used to build PyTorch", ""))
            or "+cpu" in found
            or "+rocm" in found
            or _no_gpu_build(lines)
            else cuda
        )
    return Torch(
        version=found,
        location="report",
        cuda=cuda if isinstance(cuda, Missing) else _first(r"^(\d+\.\d+)", cuda),
        hip=Missing(Why.ABSENT, SOURCE, "not a ROCm build")
        if isinstance(hip, Missing) and not isinstance(cuda, Missing)
        else hip,
        xpu=_xpu(lines, found),
        debug=debug in ("true", "yes") if debug in flags else missing(),
        arch_list=lines.arches or missing(),
        nccl=_library(lines, "nvidia-nccl", cuda),
        cudnn=_library(lines, "nvidia-cudnn", cuda),
        source=SOURCE,
    )


def _xpu(lines: Lines, torch: str) -> Fact[str]:
    """Return the SYCL version of a build for Intel GPUs, of which the line tells since torch 2.8, or the name in the local version."""
    named = value_of(lines, "XPU used to build PyTorch")
    return "xpu" if isinstance(named, Missing) and "+xpu" in torch else named


def _no_gpu_build(lines: Lines) -> bool:
    """Whether "Could not collect" stands for torch.version.cuda = None of a CPU-only build, as it does until torch 1.13.

    Before 1.7 no line told of ROCm: there an NVIDIA driver must say that the build is not for AMD GPUs
    (torch/utils/collect_env.py at v1.3.1 and v1.7.1; github.com/pytorch/pytorch/issues/44303).
    """
    unavailable = lines.values.get("Is CUDA available", "").strip().lower() in ("no", "false")
    named = not isinstance(value_of(lines, "PyTorch version"), Missing)
    if "ROCM used to build PyTorch" in lines.values:
        return unavailable and named and isinstance(value_of(lines, "ROCM used to build PyTorch"), Missing)
    return unavailable and named and not isinstance(value_of(lines, "Nvidia driver version"), Missing)


def _library(lines: Lines, name: str, cuda: Fact[str]) -> Fact[str]:
    major = "" if isinstance(cuda, Missing) else cuda.partition(".")[0]
    found = next((item.version for item in lines.packages if item.name in (name, f"{name}-cu{major}")), None)
    return found if found is not None else missing()


def live_facts(lines: Lines, torch: Fact[Torch]) -> Fact[LiveTorch]:
    """Return what torch saw when it ran: collect_env imports torch, so what it says of CUDA is what torch itself saw."""
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
