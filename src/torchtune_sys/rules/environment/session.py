"""The session: who runs, how they came here, and what the environment says to CUDA, PyTorch and NCCL."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, EnvironmentVariable
from torchtune_sys.model.facts.python import Torch
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, gpus_told, pci_devices_told
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent, known, need
from torchtune_sys.model.version import version
from torchtune_sys.model.visible_gpus import amd_fault, intel_faults, listed, uuids_of
from torchtune_sys.rules.environment import values
from torchtune_sys.rules.environment.common import environment, is_built_without
from torchtune_sys.rules.gates import NO_TORCH, intel_cards_served, nvidia_hardware

_NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")


@rule(
    id="container-uid-without-passwd",
    title="The user id has no entry in the user database",
    severity=Severity.ERROR,
    cause="container-uid-without-passwd",
    fix=(
        Advice(text="give the container a passwd entry (docker run -v /etc/passwd:/etc/passwd:ro, or useradd in the image)"),
        Advice(text="or name the user in the job's environment: export USER=me LOGNAME=me"),
    ),
)
def container_uid_without_passwd(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The process runs under a user id that has no name, and no environment variable names the user either.

    Why it matters
    getpass.getuser() raises KeyError ("getpwuid(): uid not found"; OSError from Python 3.13 on). PyTorch's compiler asks it for
    the name of its cache directory, so torch.compile and anything that imports torch._inductor (torchvision, vLLM) fail;
    TORCHINDUCTOR_CACHE_DIR is only a partial remedy. This is common with docker run --user 1234 and on OpenShift. torch 2.13 does
    not need the name.

    When to leave it
    The job sets USER or LOGNAME itself, in a place this command does not see.

    References
    https://docs.python.org/3/library/getpass.html (the order LOGNAME, USER, LNAME, USERNAME, then the user database)
    pytorch torch/_inductor/runtime/cache_dir_utils.py (default_cache_dir)
    https://github.com/pytorch/pytorch/issues/140765, https://github.com/pytorch/pytorch/pull/184208
    """
    session = need(s.session)
    if need(session.passwd_entry):
        yield Evidence(subject="user", seen=f"uid {session.uid} is {session.user}", verdict=Verdict.PASS, source="getpwuid")
        return
    named = next((name for name in _NAMES if need(session.env).get(name)), None)
    if named:
        seen = f"uid {session.uid} has no entry, but {named} is set"
        yield Evidence(subject="user", seen=seen, verdict=Verdict.PASS, source="environment")
        return
    torch = None if isinstance(s.python, Missing) else s.python.torch
    if absent(torch):
        raise NotApplicable(NO_TORCH)
    if isinstance(torch, Torch) and version(torch.version) >= (2, 13):
        seen = f"uid {session.uid} has no entry, which torch {torch.version} does not mind"
        yield Evidence(subject="user", seen=seen, verdict=Verdict.PASS, source="getpwuid")
        return
    yield Evidence(
        subject="user",
        seen=f"uid {session.uid} has no entry, and none of {', '.join(_NAMES)} is set",
        wanted="a name for this uid",
        source="getpwuid",
    )


@rule(
    id="session-under-sudo",
    title="The command was run with sudo: it judged root's session, not the one that trains",
    severity=Severity.ADVICE,
    fix=(Advice(text="run the command again as the user who trains, without sudo"),),
)
def session_under_sudo(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Limits, environment variables, groups and the default interpreter are those of root.

    Why it matters
    sudo resets most of the environment and opens a new session with different resource limits: findings about limits, the
    interpreter and variables do not apply to the jobs of the user who called it.

    When to leave it
    Jobs do run as root, or you are interested only in hardware and kernel settings.

    References
    sudoers(5), "Command environment"
    """
    session = need(s.session)
    caller = need(session.sudo_user)
    if caller and caller != "root" and need(session.uid) == 0:
        yield Evidence(
            subject="session", seen=f"root, called by {caller} through sudo", wanted=f"a run as {caller}", source="SUDO_USER"
        )


_OF_SYSTEM = Advice(
    text="remove the line from /etc/ld.so.preload, as root (or install the library); in a container: from the image"
)


def _amd_alone(s: Snapshot) -> int:
    """Return how many AMD GPUs there are, where there is none of NVIDIA's."""
    shown = gpus_told(s)
    if isinstance(s.driver, Missing) or shown or known(s.driver.nvidia_devices, ()):
        return 0
    return len(known(s.driver.amd_devices, ()))


def _intel_alone(s: Snapshot) -> int:
    """Return how many devices Level Zero may count, graphics of processors and tiles too, where torch is a build for Intel GPUs and has a card."""
    torch = Missing(Why.NOT_RECORDED, "torch") if isinstance(s.python, Missing) else s.python.torch
    if isinstance(torch, Missing) or not known(torch.xpu, "") or not intel_cards_served(s):
        return 0
    served = [device for device in pci_devices_told(s) if known(device.driver, "") in ("i915", "xe")]
    return sum(2 if known(device.device, "").startswith(_OF_TWO_TILES) else 1 for device in served)


_OF_TWO_TILES = ("0x0bd", "0x0b6")
"""Data Center GPU Max (Linux include/drm/intel/pciids.h, INTEL_PVC_IDS): by default each tile is a device of its own."""


def _gpus_here(s: Snapshot) -> None:
    if not _amd_alone(s) and not _intel_alone(s):
        nvidia_hardware(s)


@rule(
    id="cuda-visible-devices-wrong",
    title="CUDA_VISIBLE_DEVICES hides GPUs that it appears to list, or all of them",
    severity=Severity.ERROR,
    cause="cuda-visible-devices-wrong",
    applies=_gpus_here,
    fix=(
        EnvironmentVariable(name="CUDA_VISIBLE_DEVICES", value=None),
        Advice(text="or name existing GPUs only, each once: indices from 0, or the UUIDs that nvidia-smi -L prints"),
    ),
)
def cuda_visible_devices_wrong(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A nonexistent index ends the list at that point; an empty value, or a device listed twice, hides every GPU. On a host with AMD GPUs
    ROCR_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES are judged, too; with torch for Intel GPUs ZE_AFFINITY_MASK and ONEAPI_DEVICE_SELECTOR, where they hide all.

    Why it matters
    torch.cuda.is_available() is False, or fewer devices are visible than ranks are started ("invalid device ordinal"). No message
    names the variable as the reason.

    When to leave it
    GPUs are hidden from this session on purpose (a login node, a CPU-only step).

    References
    CUDA C++ Programming Guide, "CUDA Environment Variables", CUDA_VISIBLE_DEVICES
    pytorch torch/cuda/__init__.py (_parse_visible_devices)
    https://rocm.docs.amd.com/en/latest/conceptual/gpu-isolation.html
    https://oneapi-src.github.io/level-zero-spec/level-zero/latest/core/PROG.html#affinity-mask (a card of two tiles is two devices)
    https://github.com/intel/llvm/blob/sycl/sycl/doc/EnvironmentVariables.md (ONEAPI_DEVICE_SELECTOR); torch asks Level Zero alone
    """
    if amd := _amd_alone(s):
        wrong = amd_fault(environment(s), amd)
        if name := wrong.variable:
            seen_as = f"{environment(s)[name]!r}: {wrong.fault}"
            unset = EnvironmentVariable(name=name, value=None)
            yield Evidence(subject=name, seen=seen_as, wanted=f"some of 0-{wrong.count - 1}", source="environment", fix=(unset,))
        return
    if intel := _intel_alone(s):
        for name, fault in intel_faults(environment(s), intel):
            unset = EnvironmentVariable(name=name, value=None)
            seen_as = f"{environment(s)[name][:_QUOTED]!r}: {fault}"
            yield Evidence(subject=name, seen=seen_as, wanted="unset", source="environment", fix=(unset,))
        return
    value = environment(s).get("CUDA_VISIBLE_DEVICES")
    if value is None:
        raise NotApplicable("CUDA_VISIBLE_DEVICES is not set")
    devices = need(need(s.gpu).devices)
    fault = listed(value, uuids_of(devices), any(gpu.mig is True for gpu in devices)).fault
    if fault:
        yield Evidence(
            subject="CUDA_VISIBLE_DEVICES",
            seen=f"{value!r}: {fault}",
            wanted=f"some of 0-{len(devices) - 1}" if devices else "unset",
            source="environment",
        )


_MOST_FAULTS, _QUOTED = 16, 500
"""torch ends at the first."""


@rule(
    id="cuda-allocator-setting-invalid",
    title="PyTorch refuses the settings given for its memory allocator",
    severity=Severity.ERROR,
    fix=(Advice(text="write name:value,name:value with the names given in PyTorch's documentation, or unset the variable"),),
)
def cuda_allocator_setting_invalid(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """PYTORCH_CUDA_ALLOC_CONF (or PYTORCH_ALLOC_CONF, PYTORCH_HIP_ALLOC_CONF) has a name or value that the allocator rejects.

    Why it matters
    The first allocation on a GPU raises RuntimeError ("Unrecognized CachingAllocator option"): the job fails after it has loaded
    everything.

    When to leave it
    Never on a host that trains on GPUs.

    References
    https://docs.pytorch.org/docs/stable/notes/cuda.html#optimizing-memory-usage-with-pytorch-cuda-alloc-conf
    pytorch c10/core/AllocatorConfig.cpp, c10/cuda/CUDAAllocatorConfig.cpp
    """
    given = {name: value for name, value in environment(s).items() if name in values.ALLOCATOR_VARIABLES}
    if not given:
        raise NotApplicable("no allocator setting in the environment")
    torch = None if isinstance(s.python, Missing) or isinstance(s.python.torch, Missing) else s.python.torch.version
    if not isinstance(s.python, Missing) and absent(s.python.torch):
        raise NotApplicable(NO_TORCH)
    if is_built_without(s, intel=True):
        raise NotApplicable("torch is a CPU-only build, of which nothing reads it")
    for name, value in given.items():
        for fault in values.allocator_faults(value, torch)[:_MOST_FAULTS]:
            yield Evidence(subject=name, seen=f"{value[:_QUOTED]!r}: {fault}", wanted="name:value,…", source="environment")
        for unheard in values.unknown_allocator_names(value)[:_MOST_FAULTS]:
            yield Evidence(
                subject=f"{name} {unheard}",
                seen="no option that this version of torchtune-sys knows",
                verdict=Verdict.UNKNOWN,
                source="environment",
            )


@rule(
    id="ld-preload-missing",
    title="LD_PRELOAD names a library that is not there",
    severity=Severity.WARNING,
    fix=(
        EnvironmentVariable(name="LD_PRELOAD", value=None),
        Advice(text="or correct the path in LD_PRELOAD (or install the library)"),
    ),
)
def ld_preload_missing(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The loader ignores a library that it cannot find, or a file that is none, with a message at the start of every process: one of LD_PRELOAD, or of /etc/ld.so.preload.

    Why it matters
    The library (jemalloc, tcmalloc, an OpenMP runtime, a plugin) is not in effect, and "cannot be preloaded: ignored" fills the
    output of each worker. In a container, a library that exists only on the host is missing.

    When to leave it
    Never: either you need the library, or you do not need the variable.

    References
    ld.so(8), LD_PRELOAD and /etc/ld.so.preload
    """
    session = need(s.session)
    if not need(session.env).get("LD_PRELOAD") and not session.system_preloads:
        raise NotApplicable("LD_PRELOAD is not set, and there is no /etc/ld.so.preload")
    for named, source, fix in (
        (session.preloads, "LD_PRELOAD", ()),
        (session.system_preloads, "/etc/ld.so.preload", (_OF_SYSTEM,)),
    ):
        for path, there in named.items():
            if isinstance(there, Missing):
                yield unsure(path, there)
            elif not there:
                yield Evidence(subject=path, seen="no such file", wanted="a library", source=source, fix=fix)
            elif path in session.no_libraries:
                yield Evidence(subject=path, seen="no library: not an ELF file", wanted="a library", source=source, fix=fix)
