"""Detect the kind of machine: container, virtual machine, WSL or bare metal. Reads files only, starts no process."""

from __future__ import annotations

from torchtune_sys.formats import hypervisors
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why, fact, known, need

DMI = "/sys/class/dmi/id"
_OSTREE_BOOTED = "/run/ostree-booted"
_TRANSACTIONAL = "/usr/sbin/transactional-update"

_RUNTIMES = {"systemd-nspawn": "nspawn", "lxc": "lxc", "lxc-libvirt": "lxc", "docker": "docker", "podman": "podman"}
"""Values of $container (systemd-detect-virt(1), https://systemd.io/CONTAINER_INTERFACE/)."""

_CGROUP_HINTS = (
    ("kubepods", "kubernetes"),
    ("/docker/", "docker"),
    ("/docker-", "docker"),
    ("/libpod-", "podman"),
    ("/lxc/", "lxc"),
    ("/lxc.payload", "lxc"),
    ("/cri-containerd-", "kubernetes"),
)
"""In the paths of /proc/self/cgroup. Slurm's job cgroups (/slurm/, slurmstepd.scope) hold no container."""

_LAYERS = ("/docker/", "/containers/storage/", "containerd", "/lxc/", "/enroot/")
"""In the lowerdir of an overlay root. An overlay alone is no container: live and diskless systems have one too."""


def container(host: Host) -> Fact[str]:
    """Return the container runtime, ``""`` if none. The most telling sign first."""
    names = known(host.env(), {})
    podman, docker = host.exists("/run/.containerenv"), host.exists("/.dockerenv")
    in_pod = "KUBERNETES_SERVICE_HOST" in names
    if docker is True and _is_leftover(host):
        docker = False
    if podman is True or docker is True:
        return "kubernetes" if in_pod else ("podman" if podman is True else "docker")
    if any(f"{brand}_{what}" in names for brand in ("APPTAINER", "SINGULARITY") for what in ("CONTAINER", "NAME")):
        return "apptainer"
    for named in (host.word("/run/systemd/container"), host.word("/run/host/container-manager"), names.get("container", "")):
        if not isinstance(named, Missing) and named:
            return "kubernetes" if in_pod else _RUNTIMES.get(named, "other")
    groups = host.text("/proc/self/cgroup")
    if not isinstance(groups, Missing) and (found := parse_cgroup_hint(groups)):
        return found
    if in_pod:
        return "kubernetes"
    mounts = host.text("/proc/self/mountinfo")
    if not isinstance(mounts, Missing) and is_container_root(mounts):
        return "other"
    return _no_container(podman, docker)


_INITIAL_PID_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO of the kernel's include/linux/proc_ns.h."""


def _is_leftover(host: Host) -> bool:
    """Machine images that were made from a container image keep its /.dockerenv: then / is a disk and process 1 the kernel's."""
    mounts = host.text("/proc/self/mountinfo")
    if isinstance(mounts, Missing) or host.link("/proc/self/ns/pid") != _INITIAL_PID_NAMESPACE:
        return False
    return any(" / / " in line and " - overlay " not in line for line in mounts.splitlines())


def _no_container(podman: Fact[bool], docker: Fact[bool]) -> Fact[str]:
    return next((looked for looked in (docker, podman) if isinstance(looked, Missing)), "")


def parse_cgroup_hint(text: str) -> str:
    """Return the container runtime that made the session's cgroup, ``""`` if none is recognised.

    >>> parse_cgroup_hint("0::/system.slice/docker-4f1c.scope\\n"), parse_cgroup_hint("0::/user.slice\\n")
    ('docker', '')
    """
    return next((runtime for hint, runtime in _CGROUP_HINTS if any(hint in line for line in text.splitlines())), "")


def is_container_root(mountinfo: str) -> bool:
    """Return whether / is an overlay over a container runtime's image layers.

    >>> is_container_root("1 0 0:40 / / rw - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/AB,upperdir=/x\\n")
    True
    """
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        fields = before.split(" ")
        if len(fields) > 4 and fields[4] == "/" and after.startswith(("overlay ", "fuse.fuse-overlayfs ", "aufs ")):
            return any(layer in after for layer in _LAYERS)
    return False


def hypervisor(host: Host, kernel: Fact[str], info: Fact[str]) -> Fact[str]:
    """Return what the machine runs on, ``""`` on bare metal. ``info`` is the text of /proc/cpuinfo."""
    if not isinstance(kernel, Missing) and "microsoft" in kernel.lower():
        # WSL1 translates system calls: 4.4.0-19041-Microsoft. WSL2 is a kernel of its own: 5.15.153.1-microsoft-standard-WSL2.
        if "wsl2" in kernel.lower() or "microsoft-standard" in kernel or host.exists("/dev/dxg") is True:
            return "wsl2"
        return "wsl1" if kernel.endswith("-Microsoft") else _hypervisor(host, info)
    return _hypervisor(host, info)


def _hypervisor(host: Host, info: Fact[str]) -> Fact[str]:
    flag = None if isinstance(info, Missing) else parse_hypervisor_flag(info)
    if flag is False and host.word("/sys/hypervisor/type") != "xen":
        return ""
    vendor = _by_dmi(host)
    if isinstance(vendor, str) and vendor:
        return vendor
    if flag is None:  # no x86: only firmware tells
        return _by_device_tree(host, vendor, info)
    return _by_clock(host)


def parse_hypervisor_flag(cpuinfo: str) -> bool | None:
    """Return whether an x86 processor says that it is virtual; POWER tells it by its platform; None where cpuinfo cannot tell.

    >>> parse_hypervisor_flag("flags\\t\\t: fpu hypervisor lahf_lm\\n"), parse_hypervisor_flag("platform\\t: PowerNV\\n")
    (True, False)
    >>> parse_hypervisor_flag("Features\\t: fp asimd\\n")
    """
    for line in (*cpuinfo[:8192].splitlines(), *cpuinfo[-1024:].splitlines()):
        name, _, value = line.partition(":")
        match name.strip():
            case "flags":
                return "hypervisor" in value.split()
            case "platform" if value.strip() in ("PowerNV", "pSeries"):
                return value.strip() == "pSeries"
    return None


@fact
def _by_dmi(host: Host) -> Fact[str]:
    vendor = need(host.text(f"{DMI}/sys_vendor"))
    product, bios = (known_text(host.text(f"{DMI}/{name}")) for name in ("product_name", "bios_vendor"))
    return vendor_name(vendor.strip("\0 \n"), product, bios)


def known_text(text: Fact[str]) -> str:
    return "" if isinstance(text, Missing) else text.strip("\0 \n")


def vendor_name(vendor: str, product: str, bios: str) -> str:
    """Return the hypervisor by what it writes into the DMI tables; ``""`` where they name none.

    >>> vendor_name("Amazon EC2", "p5.48xlarge", "Amazon EC2"), vendor_name("Amazon EC2", "g4dn.metal", "Amazon EC2")
    ('amazon', '')
    """
    if vendor == "Amazon EC2" or bios == "Amazon EC2":
        return "" if ".metal" in product else "amazon"
    if vendor == "Microsoft Corporation":
        return "microsoft" if product == "Virtual Machine" else ""
    if vendor == "Google" or product == "Google Compute Engine":
        return "google"
    if vendor.startswith("Xen") or bios.startswith("Xen"):
        return "amazon" if "amazon" in bios.lower() or ".amazon" in product else "xen"
    if vendor.startswith("VMware"):
        return "vmware"
    if vendor == "innotek GmbH" or product == "VirtualBox":
        return "virtualbox"
    kvm = (
        "QEMU",
        "Red Hat",
        "OpenStack Foundation",
        "Alibaba Cloud",
        "Tencent Cloud",
        "DigitalOcean",
        "Hetzner",
        "KubeVirt",
        "oVirt",
    )
    if vendor.startswith(kvm) or "KVM" in product or bios == "SeaBIOS" or product.startswith("Standard PC ("):
        return "kvm"
    return ""


def _by_clock(host: Host) -> Fact[str]:
    """Return the hypervisor by its paravirtual clock, which names it where there is no DMI table (Firecracker, some container VMs)."""
    return hypervisors.meant(known(host.text("/sys/devices/system/clocksource/clocksource0/available_clocksource"), ""))


def _by_device_tree(host: Host, dmi: Fact[str], info: Fact[str]) -> Fact[str]:
    """Arm and others: the DMI table named no hypervisor, or there is none."""
    if not isinstance(dmi, Missing):
        return ""
    node = host.text("/proc/device-tree/hypervisor/compatible")
    if not isinstance(node, Missing):
        return hypervisors.meant(node)
    if host.exists("/proc/device-tree") is True and node.why is Why.ABSENT:
        return ""
    return dmi if not isinstance(info, Missing) else info


@fact
def image_tool(host: Host) -> Fact[str]:
    """Return what makes the next boot's image; ABSENT where packages are installed into the running system.

    Sources: ostree(1), /run/ostree-booted (bootc has it, too); transactional-update(8), whose root is mounted read-only.
    """
    booted, updater = host.exists(_OSTREE_BOOTED), host.exists(_TRANSACTIONAL)
    if booted is True:
        return "rpm-ostree"
    if updater is True:
        space = need(host.space("/usr"))
        if space.read_only:
            return "transactional-update"
    hidden = next((found for found in (booted, updater) if isinstance(found, Missing) and found.why is not Why.ABSENT), None)
    return Missing(Why.ABSENT, _OSTREE_BOOTED, "packages are installed into the running system") if hidden is None else hidden
