"""Rules on PCIe links that are slower or narrower than card and slot allow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchtune_sys.formats.pci_paths import is_gpu
from torchtune_sys.knowledge.gpus import name_by_device
from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.pci import PciDevice
from torchtune_sys.model.facts.python import LoadedLink
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, gpus_by_address, gpus_told
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, Why, absent_or_unsupported, known, need
from torchtune_sys.rules import gates
from torchtune_sys.rules.gpu.common import subject
from torchtune_sys.rules.pci import common as pci_seen
from torchtune_sys.rules.pci.common import bare_metal, functions
from torchtune_sys.rules.pci.siblings import narrower

_GENERATION = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_RESEAT = Advice(
    text="reseat the card, its riser and cables; check the slot's lanes and speed in the firmware setup; update the card's "
    "firmware"
)


def _of_both(card: Fact[int] | Fact[float], slot: Fact[int] | Fact[float]) -> float | None:
    """Return the lanes or the speed that card and slot both have; None where one of them does not tell."""
    return None if isinstance(card, Missing) or isinstance(slot, Missing) else min(card, slot)


@rule(
    id="gpu-pcie-link-degraded",
    title="A GPU's PCIe link has fewer lanes or a lower speed than card and slot support",
    severity=Severity.WARNING,
    params=(Param("busy_pct", 50, "GPU utilisation from which on the link speed is judged; an idle link is slow on purpose"),),
    fix=(_RESEAT,),
)
def gpu_pcie_link_degraded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The link has fewer lanes than both the card and the slot support, or it runs at a low speed although the GPU is busy.

    Where no slot is shown (in a virtual machine or a report, mostly): fewer lanes than other GPUs of the model have, or in these two a quarter
    of its own while it is busy or its link has its highest speed.

    Why it matters
        Half the lanes mean half the bandwidth to and from the GPU and, on hosts without NVLink, between GPUs.

    When to leave it
        The firmware splits the slot's lanes between two cards. An idle GPU's link drops to a lower speed to save power, so the
        speed is judged only while the GPU is busy, or with --live, which copies 64 MB a few times. Without a slot to compare with, so is a quarter of
        the lanes. GPUs beside a Grace (GH200, GB200), whose data takes NVLink-C2C, are not judged.

    References
        https://docs.nvidia.com/deploy/nvml-api/group__nvmlDeviceQueries.html (PCIe link)
        https://github.com/Syllo/nvtop/issues/426, https://github.com/NVIDIA/nccl/issues/1579 (the narrow PCIe link of a GH200's GPU)
        Linux Documentation/ABI/testing/sysfs-bus-pci (current_link_width, max_link_width)
    """
    if bare_metal(s):
        yield from _gpu_links(s, int(p["busy_pct"]))
        return
    hypervisor = s.system if isinstance(s.system, Missing) else s.system.hypervisor
    if isinstance(hypervisor, Missing) and hypervisor.why is not Why.NOT_RECORDED:
        raise Unknown(hypervisor)
    seen = () if isinstance(s.pci, Missing) or isinstance(s.pci.devices, Missing) else s.pci.devices
    gpus = tuple(device for device in seen if is_gpu(device))
    judged = tuple(narrower(gpus)) or (() if gpus_told(s) else tuple(_by_its_own_lanes(gpus)))
    yield from judged or _by_what_nvml_says(s, gates.nvidia_gpus(s), int(p["busy_pct"]))


def _gpu_links(s: Snapshot, busy_pct: int) -> Iterator[Evidence]:
    found = functions(s)
    gpus = pci_seen.gpus(s)
    shown = gpus_by_address(s)
    links = {link.address: link for link in known(_loaded(s), ())}
    judged = False
    for device in gpus:
        evidence = _gpu_link(s, device, found.get(device.parent), shown.get(device.address), links.get(device.address), busy_pct)
        if evidence is not None:
            judged = True
            yield evidence
    if judged:
        return
    models = () if _of_board(s, gpus) else dict.fromkeys((known(gpu.vendor, ""), known(gpu.device, "")) for gpu in gpus)
    for model in models:
        others = tuple(narrower(gpu for gpu in gpus if (known(gpu.vendor, ""), known(gpu.device, "")) == model))
        if 2 * sum(item.verdict is Verdict.FAIL for item in others) < len(others) >= _LIKE_SLOTS:
            judged = True
            yield from others
    if not judged:
        few = tuple(_very_few_lanes(s, busy_pct))
        yield from few
        judged = bool(few)
    if not judged:
        raise NotApplicable(
            "no GPU has a PCIe link of its own below a slot that can be seen, or three more of its model beside it"
        )


_LIKE_SLOTS = 4
"""From so many GPUs of one model on, slots that cannot be seen are thought alike if most links are; two in a workstation often are not."""


def _of_board(s: Snapshot, gpus: Iterable[PciDevice]) -> bool:
    """Whether a GPU is part of a board that gives its link as many lanes as it needs: a Grace's, or a laptop's."""
    shown = gpus_by_address(s)
    told = [shown.get(device.address) for device in gpus]
    return any((gpu is not None and _BESIDE_A_GRACE.search(known(gpu.name, ""))) or gates.of_laptop(s, gpu) for gpu in told)


def _gpu_link(
    s: Snapshot, device: PciDevice, above: PciDevice | None, gpu: Gpu | None, link: LoadedLink | None, busy_pct: int
) -> Evidence | None:
    """Return what is seen of one GPU's link; None where it has none, or where its slot is not known."""
    name, width = f"GPU {device.address}", device.link.current_width
    if isinstance(width, Missing):
        return None if absent_or_unsupported(width) else unsure(name, width)
    reachable = None if above is None else _of_both(device.link.max_width, above.link.max_width)
    if above is None or reachable is None:
        return None
    if gpu is not None and _BESIDE_A_GRACE.search(known(gpu.name, "")):
        return None
    if gates.of_laptop(s, gpu):
        return None  # the board wires 8 or fewer lanes to it, whatever the processor's port says it could have
    best = _of_both(device.link.max_gts, above.link.max_gts)
    slow = None if best is None else _slow_while_copying(best, link) or _slow_while_busy(best, gpu, busy_pct)
    if best is not None and not slow and width >= reachable:
        unseen = _unseen_load(s, device, best, gpu, link, busy_pct)
        if unseen is not None:
            return unsure(name, unseen, f"{best:g} GT/s while it is busy")
    return Evidence(
        subject=name,
        seen=f"x{width}" + (f", generation {slow[0]} under load" if slow else "") + _rate(link),
        wanted=f"x{reachable}" + (f", generation {slow[1]}" if slow else ""),
        verdict=Verdict.FAIL if width < reachable or slow else Verdict.PASS,
        source=f"/sys/bus/pci/devices/{device.address}/current_link_width",
    )


def _loaded(s: Snapshot) -> Fact[tuple[LoadedLink, ...]]:
    """Links as they were while something was copied to the GPU (``--live``)."""
    live = s.python if isinstance(s.python, Missing) else s.python.live
    return live if isinstance(live, Missing) else live.links


def _rate(link: LoadedLink | None) -> str:
    if link is None or isinstance(link.copy_gbytes_per_s, Missing):
        return ""
    return f", {link.copy_gbytes_per_s:.1f} GB/s from the host"


def _slow_while_copying(best_gts: float, link: LoadedLink | None) -> tuple[int, int] | None:
    """As :func:`_slow_while_busy`, by a copy that was made for it."""
    if link is None or isinstance(link.current_gts, Missing) or link.current_gts >= best_gts:
        return None
    return _GENERATION.get(link.current_gts, 0), _GENERATION.get(best_gts, 0)


def _slow_while_busy(best_gts: float, gpu: Gpu | None, busy_pct: int) -> tuple[int, int] | None:
    """Return (generation now, generation that card and slot have) if the GPU is busy and the first is lower."""
    if gpu is None or isinstance(gpu.utilization_pct, Missing) or gpu.utilization_pct < busy_pct:
        return None
    best = _GENERATION.get(best_gts, 0)
    return None if isinstance(gpu.pcie_gen, Missing) or gpu.pcie_gen >= best else (gpu.pcie_gen, best)


_FAILED = (Why.DENIED, Why.TIMEOUT, Why.FAILED, Why.UNPARSED, Why.CRASHED)
"""A look that failed; without a driver, and where it offers no reading, nobody is known to be busy."""


def _unseen_load(
    s: Snapshot, device: PciDevice, best_gts: float, gpu: Gpu | None, link: LoadedLink | None, busy_pct: int
) -> Missing | None:
    """Of a link that is slow just now: the look that failed and would have told whether it is so under load, too."""
    if known(device.link.current_gts, 0.0) >= best_gts or (link is not None and not isinstance(link.current_gts, Missing)):
        return None
    looks: list[object] = [_loaded(s) if link is None else link.current_gts] if s.intent.live else []
    if gpu is not None:
        looks += [gpu.utilization_pct] + [gpu.pcie_gen] * (known(gpu.utilization_pct, 0) >= busy_pct)
    else:
        shown = s.gpu if isinstance(s.gpu, Missing) else s.gpu.devices
        looks += [shown] if isinstance(shown, Missing) else [other.pci_address for other in shown]
    return next((look for look in looks if isinstance(look, Missing) and look.why in _FAILED), None)


_VERY_FEW = 4
"""A quarter of its lanes: clouds give a GPU half of them (T4 of AWS G4), and no board that is made for a card of 16 lanes gives it 4."""


_BESIDE_A_GRACE = pattern(r"\bG[HB][0-9]")
"""GH200, GB10, GB200: data takes NVLink-C2C, and the link may have one lane (https://github.com/Syllo/nvtop/issues/426)."""


def _by_what_nvml_says(s: Snapshot, gpus: tuple[Gpu, ...], busy_pct: int) -> Iterator[Evidence]:
    """In a virtual machine or a report the slot is not seen; a GPU with fewer lanes than others of its model still stands out, and one with very few."""
    widest: dict[str, int] = {}
    for gpu in gpus:
        if not isinstance(gpu.pcie_width, Missing) and not isinstance(gpu.name, Missing):
            widest[gpu.name] = max(widest.get(gpu.name, 0), gpu.pcie_width)
    judged = False
    for gpu in gpus:
        if isinstance(gpu.pcie_width, Missing) or isinstance(gpu.name, Missing):
            continue
        judged = True
        width, most = gpu.pcie_width, known(gpu.pcie_width_max, 0)
        has_few = width * _VERY_FEW <= most and not gates.of_laptop(s, gpu) and not _BESIDE_A_GRACE.search(gpu.name)
        if has_few and width == widest[gpu.name] and not _is_awake(gpu, busy_pct):
            yield unsure(subject(gpu), _of_an_idle_gpu(width, most, gpu.utilization_pct), f"x{most}")
            continue
        yield Evidence(
            subject=subject(gpu),
            seen=f"x{width}",
            wanted=f"x{most}" if has_few else f"x{widest[gpu.name]} as others of its model here",
            verdict=Verdict.FAIL if has_few or width < widest[gpu.name] else Verdict.PASS,
            source="nvmlDeviceGetCurrPcieLinkWidth",
        )
    if not judged:
        raise NotApplicable("the PCIe slots cannot be seen here")


def _very_few_lanes(s: Snapshot, busy_pct: int) -> Iterator[Evidence]:
    """Yield the GPUs with a quarter of their lanes: where no slot is seen, half of them may be all that it has."""
    gpus = gpus_told(s)
    if all(isinstance(gpu.pcie_width, Missing) or isinstance(gpu.name, Missing) for gpu in gpus):
        return
    few = {subject(gpu) for gpu in gpus if known(gpu.pcie_width, 99) * _VERY_FEW <= known(gpu.pcie_width_max, 0)}
    judged = _by_what_nvml_says(s, gpus, busy_pct)
    yield from (item for item in judged if item.verdict is Verdict.FAIL and item.subject in few)


def _is_awake(gpu: Gpu, busy_pct: int) -> bool:
    """Return whether the link is as it is under load: the GPU is busy, or the link has its highest speed, which an idle one gives up first."""
    return known(gpu.utilization_pct, 0) >= busy_pct or known(gpu.pcie_gen, 0) >= known(gpu.pcie_gen_max, 99)


def _of_an_idle_gpu(width: int, most: int, use: Fact[int]) -> Missing:
    """Return why its lanes say nothing: some GPUs give up lanes while they are idle (nvidia-smi --help-query-gpu, pcie.link.width.current)."""
    source = "nvmlDeviceGetCurrPcieLinkWidth"
    why = "nothing tells whether the GPU is busy" if isinstance(use, Missing) else "the GPU is idle"
    return Missing(Why.NOT_SUPPORTED, source, f"x{width} of x{most}, but {why}", "look again while something trains on it")


_NEXT_TO_NONE = 8
"""An eighth of its lanes, of a card that nothing but lspci tells of: a laptop's board may give a GPU a quarter of them."""


def _by_its_own_lanes(gpus: tuple[PciDevice, ...]) -> Iterator[Evidence]:
    """Yield evidence for cards whose link has its highest speed, as an idle one has not, and hardly a lane: lspci was pasted, without the slot.

    The GPU of a Grace may have one lane; without its PCI id lspci calls it, as other cards without a display, a 3D controller.
    """
    for gpu in gpus:
        link, model = gpu.link, name_by_device(known(gpu.device, "").removeprefix("0x"))
        if _BESIDE_A_GRACE.search(model) or not (model or known(gpu.class_, "").startswith("0x0300")):
            continue
        width, most = known(link.current_width, 99), known(link.max_width, 0)
        if width * _NEXT_TO_NONE <= most and known(link.current_gts, 0.0) >= known(link.max_gts, 99.0):
            yield Evidence(
                subject=pci_seen.name(gpu),
                seen=f"x{width}, at the card's full speed",
                wanted=f"x{most}",
                source=f"/sys/bus/pci/devices/{gpu.address}/current_link_width",
            )


@rule(
    id="gpu-slot-narrower-than-card",
    title="A GPU sits in a slot with fewer lanes than the card has",
    severity=Severity.ADVICE,
    fix=(
        Advice(
            text="move the card to a slot with all 16 lanes (the board's manual says which), or free the slot that shares its lanes"
        ),
    ),
    nothing="no GPU is below a PCIe port that reports its width",
)
def gpu_slot_narrower_than_card(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The port above the GPU has fewer lanes than the card.

    Why it matters
        Copies between host and GPU run at the slot's speed. NVML's "maximum width" is that of card and slot combined, which hides
        this.

    When to leave it
        The board has no wider slot, or the job rarely copies. GPUs of laptops and those beside a Grace, which no slot holds, are not judged.

    References
        Linux Documentation/ABI/testing/sysfs-bus-pci (max_link_width)
    """
    if not bare_metal(s):
        need(need(s.system).hypervisor)
        raise NotApplicable("a virtual machine: its slots are made up")
    found = functions(s)
    shown = gpus_told(s)
    soldered = {gpu.pci_address for gpu in shown if gates.of_laptop(s, gpu) or _BESIDE_A_GRACE.search(known(gpu.name, ""))}
    for device in found.values():
        above = found.get(device.parent)
        if not is_gpu(device) or above is None or isinstance(above.link.max_width, Missing) or device.address in soldered:
            continue
        own = device.link.max_width
        if isinstance(own, Missing):
            if own.why is not Why.NOT_SUPPORTED:
                yield unsure(f"GPU {device.address}", own)
            continue
        yield Evidence(
            subject=f"GPU {device.address}",
            seen=f"slot x{above.link.max_width}, card x{own}",
            wanted=f"slot x{own}",
            verdict=Verdict.FAIL if above.link.max_width < own else Verdict.PASS,
            source=f"/sys/bus/pci/devices/{above.address}/max_link_width",
        )


@rule(
    id="pcie-link-degraded",
    title="A network card or NVMe drive has a slower PCIe link than card and slot support",
    severity=Severity.WARNING,
    fix=(_RESEAT,),
    nothing="no network card or NVMe drive with a PCIe link of its own",
)
def pcie_link_degraded(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The link runs with fewer lanes or at a lower speed than both ends support.

    Why it matters
        A 400 Gb/s card needs 16 lanes of PCIe generation 5, and a drive is no faster than its link. A bad contact often shows up
        here first.

    When to leave it
        The lower speed was set in the firmware on purpose, for a riser or cable that does not support more.

    References
        Linux Documentation/ABI/testing/sysfs-bus-pci (current_link_speed, current_link_width)
    """
    if not bare_metal(s):
        need(need(s.system).hypervisor)
        alike = tuple(narrower(device for device in functions(s).values() if _is_card_or_drive(device)))
        if not alike:
            raise NotApplicable("a virtual machine: its ports are made up, and no two cards or drives are alike")
        yield from alike
        return
    found = functions(s)
    for device in found.values():
        if _is_card_or_drive(device):
            yield from _link(device, found.get(device.parent))


def _is_card_or_drive(device: PciDevice) -> bool:
    return not isinstance(device.class_, Missing) and device.class_[2:6] in ("0200", "0207", "0108")


def _link(device: PciDevice, above: PciDevice | None) -> Iterator[Evidence]:
    link = device.link
    facts = (link.current_width, link.current_gts, link.max_width, link.max_gts)
    refused = next((fact for fact in facts if isinstance(fact, Missing)), None)
    if refused is not None:
        if not absent_or_unsupported(refused):  # virtual functions and integrated endpoints have no link
            yield unsure(_name(device), refused)
        return
    width, speed = need(link.current_width), need(link.current_gts)
    best_width, best_speed = need(link.max_width), need(link.max_gts)
    if width < best_width or speed < best_speed:
        if above is None or isinstance(above.link.max_width, Missing) or isinstance(above.link.max_gts, Missing):
            return  # the slot is not known: it may be what limits the card
        best_width, best_speed = min(best_width, above.link.max_width), min(best_speed, above.link.max_gts)
    yield Evidence(
        subject=_name(device),
        seen=f"x{width} at {speed:g} GT/s",
        wanted=f"x{best_width} at {best_speed:g} GT/s",
        verdict=Verdict.FAIL if width < best_width or speed < best_speed else Verdict.PASS,
        source=f"/sys/bus/pci/devices/{device.address}/current_link_speed",
    )


def _name(device: PciDevice) -> str:
    kind = "NVMe drive" if str(device.class_)[2:6] == "0108" else "network card"
    return f"{kind} {device.address}"
