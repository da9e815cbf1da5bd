"""Compute a host's facts after an action. What cannot be derived from the facts (a placeholder, what only a person can do) changes nothing."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from torchtune_sys.knowledge import cuda, torch
from torchtune_sys.model.actions import (
    Action,
    EnvironmentVariable,
    KernelArgument,
    Limit,
    ModuleOption,
    NvmlSetting,
    Service,
    Sysctl,
    SysfsWrite,
)
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.facts.limits import SessionLimit
from torchtune_sys.model.facts.python import Distribution, Torch
from torchtune_sys.model.facts.storage import Disk, StorageFacts, StoragePath
from torchtune_sys.model.facts.sysctl import Assignment, Setting
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.target import AtLeast, AtMost, Exactly, OneOf, Target, fits
from torchtune_sys.model.values import Missing, Why, known
from torchtune_sys.model.version import show, version
from torchtune_sys.rules.torch.fixes import lacking_wheel


class ReplacedTorch(msgspec.Struct, frozen=True, kw_only=True):
    """Another build of torch in the place of the one that is installed."""

    version: str
    variant: str
    """``cu128``, as the index is called."""
    with_other_python: bool = False
    """Whether the fix names another Python with it."""


class NvidiaDriver(msgspec.Struct, frozen=True, kw_only=True):
    """Another NVIDIA driver, and the start that it needs."""

    version: str


Effect = Action | ReplacedTorch | NvidiaDriver


def after(s: Snapshot, effect: Effect) -> Snapshot:
    """Return the facts as they would be; the same object where the effect is not told by any fact."""
    match effect:
        case Sysctl():
            return _sysctl(s, effect)
        case SysfsWrite():
            return _value(s, effect)
        case EnvironmentVariable():
            return _variable(s, effect)
        case KernelArgument(argument=argument):
            return _booted_with(s, argument)
        case Limit():
            return _limit(s, effect)
        case Service(unit=unit, state="enabled") if unit in _SERVICES:
            family, field, value = _SERVICES[unit]
            return _with(s, family, **{field: value})
        case ModuleOption(module="nvidia_uvm", option="uvm_disable_hmm=1"):
            return _with(s, "driver", uvm_hmm_disabled=True)
        case NvmlSetting(setting=setting):
            return _gpus(s, setting)
        case ReplacedTorch():
            return _torch(s, effect)
        case NvidiaDriver():
            return _driver(s, effect)
        case _:
            return s


def impossible(s: Snapshot, effect: Effect) -> str:
    """Return why a build of torch cannot be installed here at all, which no fact about what is installed could say; empty where it can."""
    if not isinstance(effect, ReplacedTorch) or effect.with_other_python:
        return ""
    return lacking_wheel(s, torch.release(effect.version))


_SERVICES: dict[str, tuple[str, str, object]] = {
    "nvidia-fabricmanager": ("driver", "fabric_manager", True),
    "nvidia-persistenced": ("driver", "persistenced", True),
    "nvidia-imex": ("driver", "imex", True),
    "systemd-timesyncd": ("hardware", "clock_synchronised", True),
}
"""Unit → the fact that says whether it does its work."""

_OURS = "torchtune-sys"
_COUNTERPARTS = {
    f"vm.dirty_{kind}{unit}": f"vm.dirty_{kind}{other}"
    for kind in ("", "background_")
    for unit, other in (("bytes", "ratio"), ("ratio", "bytes"))
}
"""Of two settings that are one, writing this one makes the other read 0 (kernel: admin-guide/sysctl/vm.rst)."""


def _with(s: Snapshot, family: str, **fields: Any) -> Snapshot:
    """``s`` with some facts of a family replaced; as it is where the family could not be looked at."""
    facts = getattr(s, family)
    return s if isinstance(facts, Missing) else msgspec.structs.replace(s, **{family: msgspec.structs.replace(facts, **fields)})


def chosen(target: Target, now: str) -> str:
    """Return the value that is written: none where a value already serves.

    >>> chosen(AtMost(10), "60"), chosen(AtLeast(2048), "4096"), chosen(OneOf(("madvise", "always")), "never")
    ('10', '4096', 'madvise')
    """
    if fits(target, now):
        return now
    match target:
        case Exactly(value=value):
            return value
        case AtLeast(value=bound) | AtMost(value=bound):
            return str(bound)
        case OneOf(values=values):
            return values[0]


def _sysctl(s: Snapshot, action: Sysctl) -> Snapshot:
    if isinstance(s.sysctl, Missing) or action.key not in s.sysctl.settings:
        return s
    now = s.sysctl.settings[action.key].running
    settings = dict(s.sysctl.settings)
    settings[action.key] = _set(settings[action.key], chosen(action.target, known(now, "")))
    other = settings.get(_COUNTERPARTS.get(action.key, ""))
    if other is not None:
        settings[other.key] = msgspec.structs.replace(other, running="0")
    return _with(s, "sysctl", settings=settings)


def _set(setting: Setting, value: str) -> Setting:
    """Return the running value, and a file that keeps it for everybody who reads one. Who wins over it is the planner's to tell."""
    kept = Assignment(value=value, source=_OURS)
    return msgspec.structs.replace(setting, running=value, assignments=(kept,), systemd=kept, procps=kept, boot=kept)


def _variable(s: Snapshot, action: EnvironmentVariable) -> Snapshot:
    if isinstance(s.session, Missing) or isinstance(s.session.env, Missing) or is_placeholder(action.value or ""):
        return s
    others = {name: value for name, value in s.session.env.items() if name != action.name}
    return _with(s, "session", env=others if action.value is None else others | {action.name: action.value})


def is_placeholder(value: str) -> bool:
    """Return whether a person is to put something else there.

    >>> is_placeholder("/path/with/room"), is_placeholder("<uuid>"), is_placeholder("N"), is_placeholder("1")
    (True, True, True, False)
    """
    return bool(re.search(r"[<>…*$]|^/path/|^/local/disk|^[NXY]$|^\.\.\.", value))


def _booted_with(s: Snapshot, argument: str) -> Snapshot:
    if isinstance(s.system, Missing) or isinstance(s.system.cmdline, Missing):
        return s
    booted = _with(s, "system", cmdline=(*s.system.cmdline, argument))
    return _with(booted, "driver", nouveau_loaded=False) if argument == "modprobe.blacklist=nouveau" else booted


_BYTES = frozenset({"memlock", "as", "data", "fsize", "stack", "rss", "core"})
"""Items that limits.conf(5) counts in KiB."""


def _limit(s: Snapshot, action: Limit) -> Snapshot:
    if isinstance(s.limits, Missing) or action.item not in s.limits.limits:
        return s
    number = None if action.target == "unlimited" else int(action.target) * (1024 if action.item in _BYTES else 1)
    return _with(s, "limits", limits={**s.limits.limits, action.item: SessionLimit(soft=number, hard=number)})


def _gpus(s: Snapshot, setting: str) -> Snapshot:
    """By the option of nvidia-smi that the setting names."""
    fields = next((fields for words, fields in _NVML.items() if words in setting), None)
    if fields is None or isinstance(s.gpu, Missing) or isinstance(s.gpu.devices, Missing):
        return s
    return _with(s, "gpu", devices=tuple(_set_gpu(gpu, fields) for gpu in s.gpu.devices))


_NVML: dict[str, dict[str, object]] = {
    "-c 0": {"compute_mode": "default"},
    "-mig 0": {"mig": False, "mig_instances": 0},
    "-e 1": {"ecc": True, "ecc_pending": True},
}


def _set_gpu(gpu: Gpu, fields: dict[str, object]) -> Gpu:
    return gpu if all(isinstance(getattr(gpu, name), Missing) for name in fields) else msgspec.structs.replace(gpu, **fields)


_WRITES = (
    (pattern(r"/cpufreq/(?:scaling_)?(governor|energy_performance_preference)$|scaling_governor$"), "policies"),
    (pattern(r"/intel_pstate/no_turbo$|/cpufreq/boost$"), "boost"),
    (pattern(r"/transparent_hugepage/(enabled|defrag|shmem_enabled)$"), "thp"),
    (pattern(r"/block/([^/]+)/queue/(scheduler|read_ahead_kb)$"), "disk"),
    (pattern(r"/class/bdi/(\d+:\d+)/(read_ahead_kb)$"), "bdi"),
)
"""Files below /sys, and the facts that hold their values."""

_THP = {"enabled": "thp", "defrag": "thp_defrag", "shmem_enabled": "thp_shmem"}


def _value(s: Snapshot, action: SysfsWrite) -> Snapshot:
    for place, kind in _WRITES:
        found = place.search(action.path)
        if found is None:
            continue
        match kind:
            case "policies":
                return _policies(s, found[1] or "governor", action.target)
            case "boost":
                return _with(s, "cpu", boost=True)
            case "thp":
                return _with(s, "memory", **{_THP[found[1]]: chosen(action.target, "")})
            case "disk":
                return _disk(s, found[1], found[2], action.target)
            case _:
                return _read_ahead(s, found[1], action.target)
    return s


def _policies(s: Snapshot, name: str, target: Target) -> Snapshot:
    if isinstance(s.cpu, Missing) or isinstance(s.cpu.policies, Missing):
        return s
    field = "epp" if name == "energy_performance_preference" else "governor"
    changed = tuple(
        item
        if isinstance(now := getattr(item, field), Missing)
        else msgspec.structs.replace(item, **{field: chosen(target, now)})
        for item in s.cpu.policies
    )
    return _with(s, "cpu", policies=changed)


def _disk(s: Snapshot, name: str, file: str, target: Target) -> Snapshot:
    if isinstance(s.storage, Missing):
        return s

    def made(disk: Disk) -> Disk:
        if disk.name != name:
            return disk
        if file == "scheduler":
            return msgspec.structs.replace(disk, scheduler=chosen(target, ""))
        return msgspec.structs.replace(disk, read_ahead_kib=int(chosen(target, "0")))

    return _with(s, "storage", **_disks(s.storage, made))


def _disks(storage: StorageFacts, made: Any) -> dict[str, Any]:
    def place(item: StoragePath) -> StoragePath:
        disks = item.disks
        return item if isinstance(disks, Missing) else msgspec.structs.replace(item, disks=tuple(map(made, disks)))

    disks = storage.disks
    return {
        "places": tuple(map(place, storage.places)),
        "disks": disks if isinstance(disks, Missing) else tuple(map(made, disks)),
    }


def _read_ahead(s: Snapshot, device: str, target: Target) -> Snapshot:
    if isinstance(s.storage, Missing):
        return s
    places = tuple(
        msgspec.structs.replace(place, read_ahead_kib=int(chosen(target, "0"))) if place.device == device else place
        for place in s.storage.places
    )
    return _with(s, "storage", places=places)


_SIMULATED = Missing(Why.NOT_RECORDED, "a fix that was not made", "only the host itself can tell")


def _torch(s: Snapshot, build: ReplacedTorch) -> Snapshot:
    if isinstance(s.python, Missing):
        return s
    full = f"{build.version}+{build.variant}"
    now = s.python.torch
    location = "" if isinstance(now, Missing) else now.location
    new = Torch(
        version=full,
        location=location,
        cuda=torch.local_cuda(full) or _SIMULATED,
        hip=Missing(Why.ABSENT, _SIMULATED.source),
        debug=False,
        arch_list=_SIMULATED,
        nccl=_SIMULATED,
        cudnn=_SIMULATED,
    )
    found = s.python.distributions
    others = found if isinstance(found, Missing) else tuple(item for item in found if not _goes_with_torch(item))
    return _with(
        s, "python", torch=new, distributions=others, live=_SIMULATED, complaints=(), loader=_SIMULATED, shadowing=_SIMULATED
    )


def _goes_with_torch(item: Distribution) -> bool:
    """Tell whether it is installed anew with torch, or is made for one torch."""
    return item.name.startswith(("torch", "nvidia-", "triton", "pytorch")) or any(
        re.match(r"torch\b", requirement) for requirement in item.requires
    )


def _driver(s: Snapshot, driver: NvidiaDriver) -> Snapshot:
    covers = cuda.max_cuda(version(driver.version))
    changed = _with(
        s,
        "driver",
        module_version=driver.version,
        library_version=driver.version,
        library_versions=(driver.version,),
        module_loaded=True,
        fabric_manager_version=_SIMULATED,
    )
    changed = _with(
        changed,
        "gpu",
        driver_version=driver.version,
        library_version=driver.version,
        cuda_driver_version=show(covers) if covers else _SIMULATED,
        error="",
        **_devices(s),
    )
    return _with(changed, "python", live=_SIMULATED, complaints=())


def _devices(s: Snapshot) -> dict[str, Any]:
    """GPUs that this driver does not show may be shown by another one."""
    if isinstance(s.driver, Missing) or isinstance(s.gpu, Missing) or isinstance(s.gpu.devices, Missing):
        return {}
    there = s.driver.nvidia_devices
    return {} if isinstance(there, Missing) or len(there) <= len(s.gpu.devices) else {"devices": _SIMULATED}
