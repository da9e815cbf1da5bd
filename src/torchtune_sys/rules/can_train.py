"""Decide what a host can train on, from torch, driver, devices and the findings that prevent training."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from torchtune_sys.model import visible_gpus
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.python import PythonFacts, Torch
from torchtune_sys.model.integrated_gpus import is_integrated
from torchtune_sys.model.rule import Result, Severity, Verdict
from torchtune_sys.model.snapshot import Snapshot, variables_told
from torchtune_sys.model.values import Missing, Unknown, Why, absent, known, need
from torchtune_sys.rules import gates
from torchtune_sys.rules.torch import common as torch_build
from torchtune_sys.rules.torch import cpu_only


class Device(str, enum.Enum):
    """Where training runs on this host."""

    GPU = "gpu"
    CPU = "cpu"
    NONE = "no"
    UNKNOWN = "unknown"


class Ability(msgspec.Struct, frozen=True, kw_only=True):
    device: Device
    gpus: int = 0
    """0 on a GPU: how many is not known."""
    why: str = ""
    """Why not on a GPU, not at all, or why it is unknown."""
    missing: Missing | None = None
    """What could not be seen, where it is unknown."""
    by_finding: bool = False
    """Whether a finding says so, which every report shows by itself."""


STOP_TORCH = frozenset({"interpreter-does-not-start", "libstdcxx-too-old", "torch-import-fails", "wheel-libs-not-found"})
"""Errors after which torch is not imported at all."""
STOP_GPUS = frozenset(
    {
        "cpu-only-build",
        "cuda-build-on-amd-host",
        "cuda-not-available-to-torch",
        "driver-too-old",
        "forward-compat-unsupported-gpu",
        "rocm-build-on-nvidia-host",
    }
)
"""Errors that leave torch without any GPU, beside those of the driver."""


def ability(s: Snapshot, results: Iterable[Result] = ()) -> Ability:
    """Return what the host can train on. An error that stops only this or that GPU, or the job for another reason, is not counted."""
    errors = [r.rule for r in results if r.verdict is Verdict.FAIL and r.rule.severity is Severity.ERROR]
    if any(rule.id in STOP_TORCH for rule in errors):
        return Ability(device=Device.NONE, why="torch does not start", by_finding=True)
    try:
        found = _by_facts(s)
    except Unknown as unknown:
        return Ability(device=Device.UNKNOWN, why=str(unknown), missing=unknown.missing)
    if found.device is Device.GPU and any(rule.id in STOP_GPUS or rule.family == "driver" for rule in errors):
        return Ability(device=Device.CPU, why="no GPU can be used", by_finding=True)
    return found


def _by_facts(s: Snapshot) -> Ability:
    python = need(s.python)
    if absent(python.torch):
        return Ability(device=Device.NONE, why=_without_torch(python))
    count = _gpus(s, need(python.torch))
    if count != 0:
        return Ability(device=Device.GPU, gpus=count or 0)
    return Ability(device=Device.CPU, why=_without_gpus(s))


def _used_by_torch(s: Snapshot) -> int | None:
    """Return how many GPUs a torch that reached one has, by the list of those that there are."""
    try:
        return _visible(s, gates.all_devices(need(s.gpu))) or None
    except Unknown:
        return None


def _without_torch(python: PythonFacts) -> str:
    if not isinstance(python.executable, Missing):
        return f"no torch in {python.executable}"
    return "no Python interpreter was found" if absent(python.executable) else "torch is not installed in the judged interpreter"


def _without_gpus(s: Snapshot) -> str:
    try:
        return "none of its GPUs can be used by this torch" if gates.gpu_count(s) else ""
    except Unknown:
        return ""


def _gpus(s: Snapshot, build: Torch) -> int | None:
    """Return how many devices this build of torch can use; None for some, where their number is not known. Raises Unknown."""
    live = torch_build.live(s)
    others = not isinstance(build.xpu, Missing) or "+hpu" in build.version
    if live is not None and not isinstance(live.cuda_available, Missing):
        if live.cuda_available:
            return known(live.device_count, _used_by_torch(s))
        if not others and not _known_plugin(s):
            return 0
    if not isinstance(build.cuda, Missing):
        return _nvidia(s)
    if not isinstance(build.hip, Missing):
        return _amd(s)
    if others or _plugin(s):
        return _others(s)
    if absent(build.cuda) or "+cpu" in build.version:
        return 0
    need(torch_build.cuda_of(build))
    return _nvidia(s)


def _nvidia(s: Snapshot) -> int:
    facts = need(s.gpu)
    if isinstance(facts.devices, Missing):
        if facts.error:
            return 0
        if absent(facts.devices) and not cpu_only.jetson(s):  # whose driver NVML does not know
            return 0
        if facts.devices.why is Why.NOT_SUPPORTED:  # asleep: the driver holds it, and wakes it for whoever trains
            return len(known(need(s.driver).nvidia_devices, ()))
    return _visible(s, need(facts.devices))


def _visible(s: Snapshot, devices: tuple[Gpu, ...]) -> int:
    """Return how many of the GPUs the session leaves to CUDA. Raises Unknown."""
    count = sum(not gpu.lost for gpu in devices)
    if any(gpu.mig is True for gpu in devices):  # of all instances a process sees the first, and no whole GPU beside it
        count = min(count, 1)
    value = known(s.session.env, {}).get("CUDA_VISIBLE_DEVICES") if not isinstance(s.session, Missing) else None
    if value is None or not count:
        return count
    shown = visible_gpus.listed(value, visible_gpus.uuids_of(devices), any(gpu.mig is True for gpu in devices))
    if shown.fault and shown.places:
        raise Unknown(Missing(Why.UNPARSED, "CUDA_VISIBLE_DEVICES", shown.fault))
    return min(count, len(shown.places))


def _amd(s: Snapshot) -> int:
    devices: Fact[tuple[str, ...]] = need(s.driver).amd_devices
    if not isinstance(s.gpu, Missing) and s.gpu.vendor == "amd" and not isinstance(s.gpu.devices, Missing):
        return len(gates.all_devices(s.gpu))
    count = 0 if absent(devices) else len(need(devices))
    env = variables_told(s)
    return 0 if "every GPU" in visible_gpus.amd_fault(env, count).fault else count


def _known_plugin(s: Snapshot) -> bool:
    """Whether a plug-in is known, of whose devices torch.cuda says nothing."""
    return any(item.name in torch_build.OTHER_ACCELERATORS for item in known(need(s.python).distributions, ()))


def _plugin(s: Snapshot) -> str:
    installed = torch_build.installed(s)
    return next((name for name in torch_build.OTHER_ACCELERATORS if name in installed), "")


_OTHER_DRIVERS = ("i915", "xe", "habanalabs")


def _others(s: Snapshot) -> int:
    """Return the number of Intel GPUs or Gaudi accelerators; which devices other plug-ins would take is not known. Raises Unknown."""
    found = [
        device
        for device in need(need(s.pci).devices)
        if known(device.driver, "") in _OTHER_DRIVERS and not is_integrated(known(device.vendor, ""), known(device.device, ""))
    ]
    if not found and _plugin(s):
        raise Unknown(Missing(Why.NOT_SUPPORTED, _plugin(s), "its accelerators are not looked for"))
    return len(found)


def skipped_without_torch(results: Iterable[Result]) -> int:
    """Return how many rules had nothing to judge since there is no torch."""
    return sum(result.verdict is Verdict.NA and result.note == gates.NO_TORCH for result in results)


def not_judged(s: Snapshot, results: tuple[Result, ...], families: Iterable[str]) -> list[str]:
    """Return those of the families of which no rule applies here; torch's, too, where there is no torch to judge."""
    of = {family: [result.verdict for result in results if result.rule.family == family] for family in families}
    idle = {family for family, verdicts in of.items() if verdicts and set(verdicts) == {Verdict.NA}}
    if of.get("torch") and ability(s).device is Device.NONE:
        idle.add("torch")
    return [family for family in of if family in idle]
