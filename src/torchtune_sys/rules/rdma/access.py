"""Rules on access to RDMA adapters: driver, device nodes, and what a container was given."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.formats.pci_paths import for_guests
from torchtune_sys.knowledge import nccl
from torchtune_sys.model.actions import Advice, Install, Needs
from torchtune_sys.model.facts.network import RdmaDevice, RdmaPort
from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot, variables_told
from torchtune_sys.model.values import NotApplicable, absent, known, known_or_unknown, need
from torchtune_sys.rules.gates import may_span_hosts, verbs_devices

_INFINIBAND_CLASS = "0207"
_AMAZON, _EFA = "1d0f", ("efa0", "efa1", "efa2", "efa3")


def _hex(fact: object) -> str:
    return fact.removeprefix("0x").lower() if isinstance(fact, str) else ""


def _is_efa(device: PciDevice) -> bool:
    return _hex(device.vendor) == _AMAZON and _hex(device.device) in _EFA


def _pci_devices(s: Snapshot) -> tuple[PciDevice, ...]:
    devices = need(s.pci).devices
    if absent(devices):
        raise NotApplicable("there is no PCI bus")
    return need(devices)


@rule(
    id="rdma-driver-not-loaded",
    title="There is an RDMA adapter, but no RDMA device that programs can open",
    severity=Severity.WARNING,
    cause="ib-driver-not-loaded",
    fix=(
        Advice(text="load the driver (sudo modprobe mlx5_ib, mlx4_ib or efa); if that fails, the kernel log says why"),
        Advice(
            text="if there is no such module: install the kernel's extra modules, DOCA-OFED, or Amazon's EFA installer; rdma-core loads it at boot"
        ),
    ),
)
def rdma_driver_not_loaded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """An InfiniBand or EFA device is on the PCI bus and /sys/class/infiniband is empty or missing; or ports are up, and there is no /dev/infiniband/uverbs* to open them by, or none that this user may open.

    Why it matters
    NCCL finds no RDMA device, logs that only at level INFO, and sends everything over TCP.

    When to leave it
    The adapter is meant for a virtual machine, or only storage uses the network. A container sees the host's whole PCI bus, and may
    have been given no RDMA device on purpose: it is judged only for a job that is known to span hosts.

    References
    https://docs.kernel.org/infiniband/index.html (user_verbs: /dev/infiniband/uverbsN); rdma-system(8) (netns exclusive)
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-start-nccl.html
    """
    may_span_hosts(s)
    found = [device for device in _pci_devices(s) if _hex(device.class_).startswith(_INFINIBAND_CLASS) or _is_efa(device)]
    found = [device for device in found if not for_guests(device.driver)]
    listed = need(s.network).rdma
    devices = () if absent(listed) else need(listed)
    if not found and not devices:
        raise NotApplicable("there is no InfiniBand or EFA adapter")
    if devices and verbs_devices(s):
        yield from _closed_nodes(s, devices)
        return
    inside = bool(known_or_unknown(need(s.system).container, ""))
    if inside and s.intent.nodes is None:
        raise NotApplicable("a container without RDMA devices, and whether the job spans several hosts is not known (--nnodes)")
    yield from _without_nodes(s, devices, inside) if devices else _without_devices(found, inside)


def _without_devices(found: list[PciDevice], inside: bool) -> Iterator[Evidence]:
    for device in found:
        yield Evidence(
            subject=device.address,
            seen=f"driver {known(device.driver, 'none')}, no RDMA device" + " in this container" * inside,
            wanted="a device in /sys/class/infiniband",
            source="/sys/class/infiniband",
            fix=(_GIVE_RDMA,) if inside else (),
        )


def _closed_nodes(s: Snapshot, devices: tuple[RdmaDevice, ...]) -> Iterator[Evidence]:
    """Fails where this user may open none of the nodes, and a network for training is up; in a container of a job over several hosts where one is closed: a device
    plug-in brings no node that it does not open, and NCCL leaves out the adapter (ncclIbInit in NVIDIA/nccl src/transport/net_ib).
    """
    closed, nodes = known(need(s.network).verbs_closed, ()), known(need(s.network).verbs_nodes, ())
    inside = bool(known(need(s.system).container, ""))
    enough = 1 if inside and (s.intent.nodes or 1) > 1 else sum(name.startswith("uverbs") for name in nodes)
    if closed and len(closed) >= enough and _for_training(s, devices):
        yield Evidence(
            subject="/dev/infiniband",
            seen=f"this user may not open {', '.join(closed[:3])}{' …' * (len(closed) > 3)}",
            wanted="readable and writable",
            source=f"/dev/infiniband/{closed[0]}",
            fix=(_OPEN_VERBS,),
        )
    elif known(need(s.network).verbs_library, True) is False and (s.intent.nodes or 1) > 1 and _by_nccl_itself(s, devices):
        yield Evidence(
            subject="libibverbs.so.1",
            seen="the loader does not find it: NCCL opens no adapter without it, and takes TCP",
            wanted="the library of rdma-core",
            source="/etc/ld.so.cache",
            fix=(_RDMA_CORE,),
        )


_RDMA_CORE = Install(text="apt install libibverbs1 ibverbs-providers, or dnf install libibverbs (in a container: in the image)")


def _by_nccl_itself(s: Snapshot, devices: tuple[RdmaDevice, ...]) -> bool:
    env = variables_told(s)
    return bool(_for_training(s, devices)) and not nccl.ib_disabled(env) and not nccl.plugin_ports(devices)


_OPEN_VERBS = Advice(
    text='mode 0666, as rdma-core\'s udev rule has it: SUBSYSTEM=="infiniband_verbs", KERNEL=="uverbs*", MODE="0666" (or the group that owns them)'
)


def _for_training(s: Snapshot, devices: tuple[RdmaDevice, ...]) -> list[RdmaPort]:
    several = (s.intent.nodes or 1) > 1
    return [port for _, port in nccl.usable_ports(devices) if several or nccl.is_made_for_training(port)]


def _without_nodes(s: Snapshot, devices: tuple[RdmaDevice, ...], inside: bool) -> Iterator[Evidence]:
    """Fails where a network for training is up; EFA in a container has a rule of its own."""
    if ports := _for_training(s, devices):
        yield Evidence(
            subject="/dev/infiniband",
            seen=f"{len(ports)} RDMA ports are up, and there is no uverbs* to open them by",
            wanted="uverbs0 and so on",
            source="/dev/infiniband",
            fix=(_GIVE_RDMA,) if inside else (_LOAD_VERBS,),
        )


_LOAD_VERBS = Advice(text="sudo modprobe ib_uverbs (at boot: install rdma-core)")
_GIVE_RDMA = Advice(
    text="give the container RDMA devices: the resource of the device plug-in (Kubernetes), or --device /dev/infiniband; rdma system show says whether "
    "the host keeps them apart by network namespace (exclusive)",
    needs=Needs.NEW_PROCESS,
)


@rule(
    id="efa-not-in-container",
    title="The container cannot open the machine's EFA devices",
    severity=Severity.WARNING,
    cause="efa-not-in-container",
    fix=(
        Advice(
            text="pass /dev/infiniband/uverbs* into the container (--device, or the vpc.amazonaws.com/efa resource in Kubernetes)"
        ),
    ),
)
def efa_not_in_container(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Elastic Fabric Adapters are on the PCI bus, but the container has no /dev/infiniband/uverbs* devices.

    Why it matters
    The libfabric plug-in of NCCL finds no EFA, and the job's traffic between hosts falls back to TCP.

    When to leave it
    The job runs on this host only.

    References
    https://docs.aws.amazon.com/AmazonECS/latest/developerguide/efa.html
    https://docs.aws.amazon.com/eks/latest/userguide/node-efa.html
    """
    may_span_hosts(s)
    if not need(need(s.system).container):
        raise NotApplicable("not in a container")
    found = [device for device in _pci_devices(s) if _is_efa(device)]
    if not found:
        raise NotApplicable("there is no EFA")
    nodes = need(s.network).verbs_nodes
    names = () if absent(nodes) else need(nodes)
    if not any(name.startswith("uverbs") for name in names):
        seen = f"{len(found)} EFA on the PCI bus, no device node"
        yield Evidence(subject="/dev/infiniband", seen=seen, wanted="uverbs0 and so on", source="/dev/infiniband")
