"""Operating system, kernel, C library, kind of machine."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge import eol
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, absent, known, need, need_if_there
from torchtune_sys.model.version import show, version


@rule(
    id="operating-system-end-of-life",
    title="The operating system no longer gets public security updates",
    severity=Severity.ADVICE,
    fix=(Advice(text="move to a supported release (in a container: to a newer base image)"),),
)
def end_of_life(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """This release of the distribution gets updates only with a support contract.

    Why it matters
    Drivers, CUDA and wheels drop such releases first: new packages no longer install, and bugs in the kernel and C library
    remain.

    When to leave it
    A contract covers it (Ubuntu Pro, Extended Life Cycle Support, LTSS), or the machine is isolated and works as it is.

    References
    The vendors' own life cycle pages: the source of the row is shown with the finding
    https://endoflife.date
    """
    system = need(s.system)
    found = need(system.os)
    end = eol.end_of_life(found.id, found.version, found.pretty_name)
    if end is None:
        raise NotApplicable(f"no end of life is known for {found.pretty_name}")
    today = need(system.today)
    over = today > end.date
    sold = f", with {end.extended_by} until {end.extended}" if end.extended and today <= end.extended else ""
    yield Evidence(
        subject=found.pretty_name,
        seen=f"updates until {end.date}{sold}",
        wanted=f"a release that is supported on {today}",
        verdict=Verdict.FAIL if over else Verdict.PASS,
        source=end.source,
    )


_UNFIT = pattern(r"[+-]debug$|\+rt(?:-debug)?$|[-.]rt[0-9]*(?:[-.+]|$)|-realtime$")
"""Flavours of Red Hat and SUSE (+debug, -debug), and of kernels with PREEMPT_RT: +rt (RHEL), -rt-amd64 (Debian), -rt (SUSE), -realtime (Ubuntu)."""


@rule(
    id="kernel-flavour-unfit",
    title="The running kernel is a build for debugging or for real-time work",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="start the distribution's usual kernel: grubby --info=ALL and grubby --set-default (Red Hat), GRUB_DEFAULT (Debian, Ubuntu), and reboot"
        ),
    ),
)
def kernel_flavour_unfit(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Its name says that it has the kernel's own checks (KASAN, lockdep) compiled in, or PREEMPT_RT.

    Why it matters
    A kernel for debugging takes several times as long for each system call and packet. NVIDIA's driver refuses to be built for PREEMPT_RT, and throughput is
    lower there.

    When to leave it
    A fault of the kernel is being looked for; or the machine controls something in real time and the driver's vendor supports that (Jetson).

    References
    https://docs.redhat.com/en/documentation/red_hat_enterprise_linux/9 (kernel-debug); Linux Documentation/dev-tools/kasan.rst
    NVIDIA open-gpu-kernel-modules, kernel-open/conftest.sh (preempt_rt_sanity_check: IGNORE_PREEMPT_RT_PRESENCE)
    """
    release = need(need(s.system).kernel)
    unfit = _UNFIT.search(release) and "tegra" not in release
    yield Evidence(
        subject="kernel",
        seen=release,
        wanted="the usual build",
        verdict=Verdict.FAIL if unfit else Verdict.PASS,
        source="uname -r",
    )


@rule(
    id="glibc-below-current-wheels",
    title="The C library is too old for current PyTorch wheels",
    severity=Severity.ADVICE,
    fix=(
        Advice(
            text="move to a distribution with glibc 2.28 or later (RHEL 8 and later, Debian 12, Ubuntu 22.04 have it), or train in a container"
        ),
        Advice(text="to stay: torch 2.6.0 for CUDA 12.4 (x86-64) is the last wheel for glibc 2.17"),
    ),
)
def glibc_too_old(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Wheels of torch 2.7 and later are tagged manylinux_2_28: pip installs them only on glibc 2.28 or later.

    Why it matters
    pip does not say so: it installs the newest release that fits, or reports "no matching distribution". On CentOS 7 (glibc 2.17)
    that release is torch 2.6. Binaries installed by other means fail with "version `GLIBC_2.28' not found".

    When to leave it
    You intend to install an older torch. Not judged if a torch is already installed.

    References
    Wheel file names of torch 2.6.0 (manylinux1) and 2.7.0 (manylinux_2_28); aarch64 and CUDA 12.6 wheels need 2.28 from 2.6 on
    https://github.com/pytorch/pytorch/issues/156215
    """
    found = need(s.system).glibc
    have = need_if_there(found, "the C library is not glibc")
    build = None if isinstance(s.python, Missing) or isinstance(s.python.torch, Missing) else s.python.torch
    if version(have) < (2, 28) and build is not None:
        raise NotApplicable(f"torch {build.version} is installed: whether it runs here is judged by glibc-too-old")
    yield Evidence(
        subject="glibc",
        seen=have,
        wanted=">= 2.28",
        verdict=Verdict.PASS if version(have) >= (2, 28) else Verdict.FAIL,
        source="confstr(CS_GNU_LIBC_VERSION)",
    )


@rule(
    id="libc-is-musl",
    title="The C library is not glibc, and PyTorch has no wheels for another one",
    severity=Severity.WARNING,
    fix=(Advice(text="use an image of Debian, Ubuntu or a RHEL clone instead of Alpine"),),
)
def libc_is_musl(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The host runs on musl (Alpine and similar).

    Why it matters
    torch, the nvidia-* packages and the NVIDIA driver's user space are built for glibc only: pip finds no torch, and libcuda does not load.

    When to leave it
    The distribution's own CPU build of torch is all you need, or training runs in containers with glibc.

    References
    PEP 656 (musllinux tags): no wheel of torch carries one; NVIDIA Container Toolkit, supported platforms
    """
    found = need(s.system).glibc
    other = absent(found)
    yield Evidence(
        subject="C library",
        seen="not glibc" if other else f"glibc {need(found)}",
        wanted="glibc",
        verdict=Verdict.FAIL if other else Verdict.PASS,
        source="confstr(CS_GNU_LIBC_VERSION)",
    )


_VENDOR_KERNEL = (".el", "-default", ".oe", ".an", ".tl", ".ky", "uek", ".lustre")
"""Kernels whose number says little: their vendors port fixes back (RHEL and clones, SUSE, openEuler, Anolis, TencentOS, Kylin, UEK)."""
_DEBIAN_KERNEL = pattern(r"[0-9]+\.[0-9]+\.[0-9]+-[0-9][\w.]*-[a-z]")
"""Debian's, Ubuntu's and Proxmox's: the version, the number of the ABI, the flavour (``5.4.0-190-generic``, ``4.19.0-0.deb10.27-amd64``)."""
_GVISOR = ("4.4.0", "4.19.0-gvisor")
"""What gVisor calls itself, for years the first (github.com/google/gvisor/issues/11117; pkg/sentry/syscalls/linux/linux64.go); a kernel that was
built has more behind the number, or has had fixes."""


@rule(
    id="kernel-old",
    title="The kernel is older than Linux 5.5, with which distributed training has been reported to hang",
    severity=Severity.ADVICE,
    params=(Param("minimum", "5.5", "oldest kernel that is not reported"),),
    fix=(Advice(text="boot a newer kernel (Ubuntu: linux-generic-hwe), or move to a newer release"),),
)
def kernel_old(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The running kernel is an upstream series before 5.5, not a vendor kernel with backported fixes.

    Why it matters
    Hugging Face Accelerate warns about these kernels: multi-process training has been reported to hang on them.

    When to leave it
    Your jobs run to completion. In a container the kernel is the host's, and only the host's owner can change it.

    References
    huggingface/accelerate src/accelerate/utils/other.py, check_os_kernel
    """
    system = need(s.system)
    kernel = need(system.kernel)
    numbers, minimum = version(kernel), version(str(p["minimum"]))
    if not numbers:
        raise NotApplicable(f"the kernel's release has no number: {kernel}")
    if "microsoft" in kernel.lower() and known(system.hypervisor, "") == "wsl1":
        raise NotApplicable("WSL 1 has no Linux kernel")
    if kernel in _GVISOR or kernel.endswith("-gvisor"):
        raise NotApplicable(f"gVisor, which is no Linux kernel and calls itself {kernel}")
    if numbers < minimum and (any(mark in kernel for mark in _VENDOR_KERNEL) or _DEBIAN_KERNEL.match(kernel)):
        raise NotApplicable(f"a vendor's kernel, whose number says little: {kernel}")
    yield Evidence(
        subject="kernel",
        seen=kernel,
        wanted=f">= {show(minimum)}",
        verdict=Verdict.PASS if numbers >= minimum else Verdict.FAIL,
        source="uname",
    )


@rule(
    id="wsl1-without-gpu",
    title="This is WSL 1, which has no Linux kernel and no GPU access",
    severity=Severity.ERROR,
    fix=(Advice(text="in PowerShell: wsl --set-version DISTRIBUTION 2"),),
)
def wsl1(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The distribution runs under version 1 of the Windows Subsystem for Linux.

    Why it matters
    WSL 1 translates system calls. It has no GPU devices, no usable /dev/shm and no cgroups: CUDA cannot start.

    When to leave it
    You only edit files here.

    References
    Microsoft Learn, Comparing WSL versions; NVIDIA, CUDA on WSL user guide: WSL 2 is required
    """
    kernel = need(need(s.system).kernel)
    kind = need(need(s.system).hypervisor) if "microsoft" in kernel.lower() else ""
    if kind not in ("wsl1", "wsl2"):
        raise NotApplicable("not in WSL")
    yield Evidence(
        subject="WSL",
        seen=f"{kind[-1]} ({kernel})",
        wanted="2",
        verdict=Verdict.FAIL if kind == "wsl1" else Verdict.PASS,
        source="uname",
    )


@rule(
    id="system-clock-wrong",
    title="The system clock is years behind",
    severity=Severity.WARNING,
    fix=(Advice(text="set the clock and keep it synchronised: timedatectl set-ntp true (in a container or VM: on the host)"),),
)
def clock_wrong(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The date is earlier than the day on which this tool's data tables were made.

    Why it matters
    Certificates are "not yet valid", so downloads of data and packages fail, and anything that compares dates (such as deleting
    old checkpoints) goes wrong.

    When to leave it
    A test sets the date on purpose.

    References
    X.509 validity (RFC 5280, section 4.1.2.5)
    """
    today = need(need(s.system).today)
    yield Evidence(
        subject="clock",
        seen=today,
        wanted=f"{eol.AS_OF} or later",
        verdict=Verdict.FAIL if today < eol.AS_OF else Verdict.PASS,
        source="clock_gettime",
    )
