"""Facts on installed packages, their holds and upgrades, kernels for the next boot, and the container runtime."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_NOT_READ = Missing(Why.NOT_RECORDED, "software", "not read")


MANAGERS = (
    ("/var/lib/dpkg/status", "dpkg"),
    ("/var/lib/pacman/local", "pacman"),
    ("/usr/lib/sysimage/rpm", "rpm"),
    ("/var/lib/rpm", "rpm"),
)
"""Where each keeps its records, in the order in which they are looked for: an rpm may be installed beside dpkg."""


class Package(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    version: str
    """With epoch and revision, as the package manager writes it."""
    held: bool = False
    """Selected as ``hold`` in dpkg, pinned to its version by apt, locked or excluded for dnf, yum, zypper or pacman: no upgrade
    touches it."""
    origin: str = ""
    """Domain of its maintainer or vendor, who is not named: ``ubuntu.com``, ``debian.org``, ``nvidia.com`` …; ``""`` where unknown."""


class NextKernel(msgspec.Struct, frozen=True, kw_only=True):
    """The newest kernel that is installed, which the next boot ordinarily takes."""

    release: str
    running: bool
    nvidia: Fact[bool]
    """Whether its module tree holds an nvidia module."""
    headers: Fact[bool]
    """Whether a module could be built for it (``/lib/modules/<release>/build`` leads somewhere)."""
    dkms: Fact[str] = _NOT_READ
    """What DKMS did for it: ``built``, ``failed`` or ``not-built``; ABSENT where DKMS has no NVIDIA module."""
    akmods: Fact[bool] = _NOT_READ
    """Whether akmods is installed, which builds what lacks when a kernel starts."""
    nouveau: Fact[bool] = _NOT_READ
    """Whether its module tree holds nouveau."""
    nouveau_barred: Fact[bool] = _NOT_READ
    """Whether a file of modprobe's or the command line keeps nouveau from loading by itself."""


class BuildTools(msgspec.Struct, frozen=True, kw_only=True):
    """What compiles on this host: for Triton a C compiler, for CUDA extensions nvcc with its host compiler."""

    libc_headers: Fact[bool]
    """Whether the system's compiler finds the C library's headers; ABSENT where the compiler is not the system's own."""
    host_compiler: Fact[str]
    """The compiler that nvcc would hand the host's part to, when torch starts it: its path."""
    host_compiler_gcc: Fact[int]
    """Major version of that gcc; ABSENT where it is no gcc."""
    nvcc_gcc_limit: Fact[int]
    """The newest major version of gcc that nvcc's own headers admit; ABSENT without nvcc."""
    ninja: Fact[str]
    """The ninja that torch.utils.cpp_extension would call: its path; ABSENT where PATH has none."""
    limit_lifted: bool = False
    """Whether nvcc is told (NVCC_PREPEND_FLAGS, NVCC_APPEND_FLAGS) to take another compiler, or any."""


CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
"""What names the place of a cache of compiled code."""


class CompileCache(msgspec.Struct, frozen=True, kw_only=True):
    """A directory in which compiled kernels are kept, and loaded from."""

    purpose: str
    """``torch.compile`` or ``Triton``."""
    variable: str
    """The variable that moves it."""
    path: str
    filesystem: Fact[str]
    mount_point: Fact[str]
    noexec: Fact[bool]
    network: Fact[bool]
    writable: Fact[bool]
    """By this session; of one that is not there yet, whether it could be made."""


class Mps(msgspec.Struct, frozen=True, kw_only=True):
    """The pipe directory by which a CUDA program would look for NVIDIA's Multi-Process Service."""

    directory: str
    asked_for: bool
    """Whether CUDA_MPS_PIPE_DIRECTORY names it; else it is the default."""
    control: Fact[bool]
    """Whether the control daemon's socket is there."""
    listening: Fact[bool]
    """Whether a control daemon is behind it."""
    owner: Fact[int]
    """UID that the socket belongs to; ABSENT where there is none."""


class SoftwareFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Looked for only where the NVIDIA driver runs (but for the rendezvous); ABSENT elsewhere."""

    packages: Fact[tuple[Package, ...]] = _NOT_READ
    """Of the GPU driver, the container runtimes and the automatic upgrades; no others."""
    automatic_upgrades: Fact[bool] = _NOT_READ
    """Whether unattended-upgrades (APT::Periodic::Unattended-Upgrade), dnf-automatic or yum-cron is switched on and installs all."""
    manager: Fact[str] = _NOT_READ
    """``dpkg``, ``rpm`` or ``pacman``; ABSENT for none of them."""
    upgrader: str = "unattended-upgrades"
    """What would upgrade by itself."""
    upgrade_exclusions: tuple[str, ...] = ()
    """Unattended-Upgrade::Package-Blacklist: regular expressions, matched from the start of a package's name."""
    runfile_installed: Fact[bool] = _NOT_READ
    """Whether NVIDIA's own installer left its uninstaller."""
    reboot_required: Fact[tuple[str, ...]] = _NOT_READ
    """Packages that ask for a reboot; ABSENT where none does."""
    next_kernel: Fact[NextKernel] = _NOT_READ
    docker: Fact[bool] = _NOT_READ
    """Whether dockerd is installed on this host."""
    cgroup_driver: Fact[str] = _NOT_READ
    """``systemd`` or ``cgroupfs``: what dockerd is told to use, or uses by default here."""
    device_links: Fact[bool] = _NOT_READ
    """Whether /dev/char has the links of NVIDIA's device nodes."""
    runtime_mode: Fact[str] = _NOT_READ
    """``mode`` in the NVIDIA container runtime's configuration; ``auto`` where it says nothing, ABSENT where no runtime of NVIDIA's is configured."""
    cdi_drivers: Fact[dict[str, str]] = _NOT_READ
    """CDI specification → the driver version whose libraries it names; empty where there is none."""
    build_tools: Fact[BuildTools] = _NOT_READ
    compile_caches: Fact[tuple[CompileCache, ...]] = _NOT_READ
    mps: Fact[Mps] = _NOT_READ
    port_listeners: Fact[tuple[int, ...]] = _NOT_READ
    """UIDs of the processes that listen on MASTER_PORT of the environment; ABSENT where the environment has none."""
    first_open_port: Fact[int] = _NOT_READ
    """The first port that needs no CAP_NET_BIND_SERVICE (net.ipv4.ip_unprivileged_port_start), read where MASTER_PORT is set; else ABSENT."""
