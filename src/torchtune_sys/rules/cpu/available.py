"""Processors: how many the job may use, how fast they may run, what they can do."""

from __future__ import annotations

import math
from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, EnvironmentVariable
from torchtune_sys.model.cpuset import CpuSet
from torchtune_sys.model.launchers import JOB_VARIABLES, LOCAL_RANK_VARIABLES, RANK_VARIABLES
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot, container_told
from torchtune_sys.model.target import AtLeast
from torchtune_sys.model.values import Missing, NotApplicable, Why, known, need
from torchtune_sys.rules.cpu.common import asked_threads, budget, some, unasked_threads
from torchtune_sys.rules.gates import gpu_count, gpu_host, ranks_here
from torchtune_sys.rules.openmp import is_gnu_alone


@rule(
    id="cpu-oversubscribed",
    title="The ranks start more threads than this session has CPUs",
    severity=Severity.WARNING,
    fix=(Advice(text="set OMP_NUM_THREADS to the CPUs divided by the ranks, less the DataLoader workers, at least 1"),),
)
def cpu_oversubscribed(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Ranks times threads per rank exceed the usable CPUs (after affinity, cpuset and the cgroup's CPU quota).

    Why it matters
    OpenMP threads spin while waiting for each other. With more threads than CPUs, each parallel region lasts until the last
    thread has been scheduled, and CPU-side work (augmentation, CPU optimizers, tokenizing) becomes many times slower.

    When to leave it
    The variable is set for a program other than the training, or the ranks do almost nothing on the CPU.

    References
    PyTorch performance tuning guide, section on OMP_NUM_THREADS
    torch 2.15 distributed/run.py: torchrun sets OMP_NUM_THREADS=1 where several ranks start and it is unset
    libgomp/env.c (a value that is no number is refused, with a message of each process)
    """
    ranks = max(s.intent.ranks or 1, 1)
    asked = asked_threads(s)
    if asked is None and s.intent.ranks is None:
        raise NotApplicable("none of --nproc-per-node, --threads and OMP_NUM_THREADS says how many threads will run")
    threads, where = asked or (unasked_threads(s) if ranks > 1 else (1, "one rank"))
    have = budget(s)
    total = ranks * threads
    if total <= have.cpus:
        have.settle()
    yield Evidence(
        subject=some(ranks, "rank"),
        seen=f"{ranks} x {some(threads, 'thread')} ({where}) on {some(have.cpus, 'CPU')}",
        wanted=f"at most {int(have.cpus / ranks)} per rank"
        if ranks <= have.cpus
        else f"at most {some(max(int(have.cpus), 1), 'rank')}",
        verdict=Verdict.FAIL if total > have.cpus else Verdict.PASS,
        source=have.source,
        fix=()
        if ranks <= have.cpus
        else (Advice(text="start fewer ranks, or allow the job more CPUs: one thread a rank is too many already"),),
    )


@rule(
    id="cpu-quota-ignored-by-torch",
    title="A CPU quota is set, but torch starts one thread for each core it sees",
    severity=Severity.WARNING,
    fix=(
        Advice(text="set OMP_NUM_THREADS to the quota, rounded down, at least 1; base num_workers on the quota too"),
        Advice(text="or give the container whole CPUs: --cpuset-cpus, Kubernetes' static CPU manager, Slurm's task/affinity"),
    ),
)
def cpu_quota_ignored(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The cgroup allows fewer CPUs than the affinity mask shows, and torch and OpenMP do not know it.

    Why it matters
    torch, OpenMP and the DataLoader count the CPUs of the affinity mask. In a container limited to 4 CPUs of a 64-CPU machine
    they start 64 threads; once the quota is used up, the kernel stops all of them until the next period (100 ms).

    When to leave it
    The program sets its number of threads itself (torch.set_num_threads).

    References
    Linux Documentation/admin-guide/cgroup-v2.rst, cpu.max; Documentation/scheduler/sched-bwc.rst
    torch 2.15 torch/_utils.py, cpu_count: reads sched_getaffinity only
    """
    cpu = need(s.cpu)
    quota = need(cpu.quota)
    if math.isinf(quota):
        raise NotApplicable("no CPU quota")
    ranks = ranks_here(s)
    asked = asked_threads(s)
    threads, where = asked or unasked_threads(s)
    several = asked is not None or (s.intent.ranks or 1) > 1  # whether these are too many is cpu-oversubscribed's to say
    judged = Verdict.FAIL if not several and threads > math.ceil(quota) else Verdict.PASS
    yield Evidence(
        subject="CPU quota",
        seen=f"{some(quota, 'CPU')} allowed, {len(need(cpu.affinity))} visible; {some(threads, 'thread')} per rank ({where})",
        wanted=f"OMP_NUM_THREADS={max(int(quota / ranks), 1)}",
        verdict=judged,
        source=cpu.quota_source,
    )


@rule(
    id="openmp-affinity-pins-process",
    title="An OpenMP setting binds the training process and its DataLoader workers to few CPUs",
    severity=Severity.WARNING,
    cause="openmp-affinity-pins-process",
    fix=(
        EnvironmentVariable(name="GOMP_CPU_AFFINITY", value=None),
        EnvironmentVariable(name="KMP_AFFINITY", value=None),
        EnvironmentVariable(name="OMP_PROC_BIND", value=None),
        EnvironmentVariable(name="OMP_PLACES", value=None),
        Advice(text="bind ranks instead: torchrun --numa-binding=node, numactl, srun --cpu-bind"),
    ),
)
def openmp_affinity(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """GOMP_CPU_AFFINITY, OMP_PROC_BIND, OMP_PLACES or, where Intel's or LLVM's OpenMP may be loaded, KMP_AFFINITY binds threads to CPUs.

    Why it matters
    When OpenMP starts, it binds the main thread to one CPU or place. DataLoader workers are forked from that thread and inherit
    its mask: they all share one CPU, and each rank with the same setting uses the same CPU.

    When to leave it
    The job has one rank and no workers, and measurements show a gain.

    References
    https://github.com/pytorch/pytorch/issues/101850
    GCC libgomp manual, GOMP_CPU_AFFINITY, and OMP_PROC_BIND: true by default where OMP_PLACES is set (tried with torch 2.13: sched_getaffinity)
    Intel oneAPI, KMP_AFFINITY (GNU's OpenMP, which torch's wheels bring, does not read it: tried with torch 2.13); OpenMP 5.2, OMP_PROC_BIND
    PyTorch performance tuning guide, section on thread affinity
    """
    if s.intent.workers == 0 and (s.intent.ranks or 1) == 1:
        raise NotApplicable("one process without workers")
    env = need(need(s.session).env)
    for name in ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES"):
        value = env.get(name, "")
        if not binds(name, value, env.get("OMP_PROC_BIND", "")) or (name == "KMP_AFFINITY" and known(is_gnu_alone(s), False)):
            continue
        yield Evidence(subject=name, seen=f"{name}={value}", wanted="unset", source="environment")


def binds(name: str, value: str, proc_bind: str) -> bool:
    """Return whether the setting binds threads.

    >>> binds("KMP_AFFINITY", "granularity=fine,compact,1,0", ""), binds("KMP_AFFINITY", "verbose,none", ""), binds("OMP_PROC_BIND", "false", "")
    (True, False, False)
    >>> binds("OMP_PLACES", "cores", ""), binds("OMP_PLACES", "cores", "false")
    (True, False)
    """
    words = value.strip().lower().replace(" ", "").split(",")
    if not value.strip():
        return False
    if name == "OMP_PROC_BIND":
        return words[0] in ("true", "close", "spread", "master", "primary")
    if name == "KMP_AFFINITY":
        return bool(
            {"compact", "scatter", "balanced", "explicit", "logical", "physical"} & {word.split("=")[0] for word in words}
        )
    return proc_bind.strip().lower() != "false"


_LAUNCHERS = frozenset((*JOB_VARIABLES, *RANK_VARIABLES, *LOCAL_RANK_VARIABLES))


@rule(
    id="session-pinned-to-few-cpus",
    title="The session is pinned to only a few of the CPUs that it may use",
    severity=Severity.WARNING,
    cause="openmp-affinity-pins-process",
    params=(
        Param("share", 0.25, "share of the allowed CPUs up to which the mask counts as small"),
        Param("cpus", 4, "number of CPUs above which a mask never counts as small"),
    ),
    fix=(Advice(text="start the job from a session without taskset or numactl, or prefix it with: taskset -c 0-LAST"),),
)
def session_pinned(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The affinity mask of this session is much smaller than its cgroup's cpuset, and no batch system or launcher set it.

    Why it matters
    Child processes inherit the mask. A shell, notebook kernel or service that was once pinned to a core keeps the whole training
    on it: load average and GPU utilisation are low, and one core is at 100 %.

    When to leave it
    You pinned the session on purpose.

    References
    sched_setaffinity(2), taskset(1)
    https://github.com/pytorch/pytorch/issues/99625
    """
    cpu = need(s.cpu)
    affinity = need(cpu.affinity)
    online = need(cpu.online)
    room = online if isinstance(cpu.cpuset, Missing) else online & cpu.cpuset
    env = need(need(s.session).env)
    if any(name in env for name in _LAUNCHERS):
        raise NotApplicable("a launcher or a batch system binds its processes")
    few = len(affinity) <= float(p["cpus"]) and len(affinity) <= float(p["share"]) * len(room)
    if few and isinstance(cpu.cpuset, Missing) and (cpu.cpuset.why not in (Why.ABSENT, Why.NOT_RECORDED) or container_told(s)):
        yield unsure(
            "affinity", cpu.cpuset, "all CPUs that the cgroup allows"
        )  # what a container's cgroup is allowed may stand above what it sees
        return
    yield Evidence(
        subject="affinity",
        seen=f"{affinity} ({len(affinity)} of {len(room)} CPUs)",
        wanted="all CPUs that the cgroup allows",
        verdict=Verdict.FAIL if few else Verdict.PASS,
        source="sched_getaffinity",
    )


@rule(
    id="cpus-too-few-for-gpus",
    title="There are too few CPUs for the GPUs",
    severity=Severity.ADVICE,
    params=(Param("per_gpu", 4, "usable CPUs for each GPU in use"),),
    fix=(Advice(text="rent or allocate more CPUs per GPU, decode and augment on the GPU, or preprocess the data beforehand"),),
    applies=gpu_host,
)
def cpus_too_few(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Each GPU in use needs a few CPUs: one for its rank, and the rest for the DataLoader workers that feed it.

    Why it matters
    Decoding and augmentation on the CPU are the usual bottleneck of image and audio training. With one or two CPUs per GPU, the
    GPU waits.

    When to leave it
    The data needs no work on the CPU (pre-tokenized text, data already on the GPU).

    References
    ml-engineering, compute/cpu: cores for the rank, two to four workers per GPU, a few for the system
    """
    gpus = min(gpu_count(s), s.intent.ranks or gpu_count(s))
    have = budget(s)
    floor = int(float(p["per_gpu"])) * gpus
    if have.cpus >= floor:
        have.settle()
    yield Evidence(
        subject=some(gpus, "GPU"),
        seen=f"{some(have.cpus, 'CPU')} for {some(gpus, 'GPU')}",
        wanted=str(AtLeast(floor)),
        verdict=Verdict.FAIL if have.cpus < floor else Verdict.PASS,
        source=have.source,
    )


_OLD_PROCESSOR = (
    Advice(text="virtual machine: expose the host's processor (QEMU -cpu host, Proxmox 'host', VMware without EVC masks)"),
    Advice(text="hardware without these instructions: build the packages that die of SIGILL from source"),
)


@rule(
    id="cpu-lacks-avx",
    title="The processor lacks AVX, which many packages of the PyTorch stack are built for",
    severity=Severity.WARNING,
    cause="cpu-lacks-avx",
    fix=_OLD_PROCESSOR,
)
def cpu_lacks_avx(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The x86 processor, often a virtual one with a generic model, does not offer AVX.

    Why it matters
    torch chooses its kernels at run time and falls back to slow ones. Many wheels in the torch ecosystem do not: they crash with "Illegal
    instruction".

    When to leave it
    All the work is on the GPU, and your packages are known to run.

    References
    torch aten/src/ATen/cpu/: kernels by CPU capability (default, AVX2, AVX512)
    https://www.tensorflow.org/install/pip (since 1.6 its packages use AVX instructions)
    """
    yield _vectors(s, "avx")


@rule(
    id="cpu-lacks-avx2",
    title="The processor lacks AVX2, without which torch takes its slow kernels",
    severity=Severity.ADVICE,
    cause="cpu-lacks-avx",
    superseded_by=("cpu-lacks-avx",),
    fix=_OLD_PROCESSOR,
)
def cpu_lacks_avx2(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The x86 processor has AVX, as those of 2011 and 2012, but not AVX2; or a virtual machine hides it.

    Why it matters
    torch has faster kernels for AVX2 and AVX-512 only. FBGEMM's quantised operators need AVX2, and some packages beside torch crash with "Illegal
    instruction".

    When to leave it
    All the work is on the GPU, and your packages are known to run.

    References
    torch aten/src/ATen/cpu/: kernels by CPU capability (default, AVX2, AVX512); FBGEMM's README: AVX2 or later
    """
    yield _vectors(s, "avx2")


def _vectors(s: Snapshot, wanted: str) -> Evidence:
    system = need(s.system)
    if need(system.machine) not in ("x86_64", "i686"):
        raise NotApplicable(f"not an x86 processor: {need(system.machine)}")
    cpu = need(s.cpu)
    flags = need(cpu.flags)
    best = next((name for name in ("avx512f", "avx2", "avx", "sse4_2", "sse4_1") if name in flags), "no SSE4.1")
    virtual = " (virtual machine)" if known(system.hypervisor, "") else ""
    return Evidence(
        subject=known(cpu.model, "processor"),
        seen=f"{best}{virtual}",
        wanted=wanted,
        verdict=Verdict.PASS if {wanted, "avx2"} & flags else Verdict.FAIL,
        source="/proc/cpuinfo",
    )


@rule(
    id="cpus-offline",
    title="Installed CPUs are offline",
    severity=Severity.ADVICE,
    fix=(Advice(text="write 1 to /sys/devices/system/cpu/cpuN/online, and remove maxcpus= from the boot arguments"),),
)
def cpus_offline(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Some present CPUs are offline, and not because hyper-threading was switched off or a container shows fewer (LXCFS).

    Why it matters
    They do no work, and GPUs near them are served from farther away. The kernel also takes CPUs offline because of faults.

    When to leave it
    Where they were taken offline on purpose.

    References
    Linux Documentation/core-api/cpu_hotplug.rst; Documentation/ABI/testing/sysfs-devices-system-cpu, smt/control;
    drivers/base/node.c: the list of a NUMA node's CPUs has those that are online
    """
    cpu = need(s.cpu)
    shown, present = need(cpu.online), need(cpu.present)
    online = shown | (_of_nodes(s) & present)
    lost = present - online
    if lost and isinstance(cpu.smt_control, Missing) and len(lost) == len(online) and not known(cpu.smt, False):
        yield unsure("CPUs", cpu.smt_control)  # as many offline as cores that have one thread each: their second threads, perhaps
        return
    off = bool(lost) and known(cpu.smt_control, "") in ("off", "forceoff") and len(lost) <= len(online)
    fewer = f"; {some(len(shown), 'CPU')} of them shown to this container" if shown < online else ""
    yield Evidence(
        subject="CPUs",
        seen=f"{len(online)} of {len(present)} online{fewer}{'; hyper-threading is switched off' if off else ''}",
        wanted="all online",
        verdict=Verdict.FAIL if lost and not off else Verdict.PASS,
        source="/sys/devices/system/cpu/online",
    )


def _of_nodes(s: Snapshot) -> CpuSet:
    """Return the CPUs that the NUMA nodes list: all are online, also where LXCFS shows a container fewer in /sys/devices/system/cpu/online."""
    nodes = known(s.numa.nodes, ()) if not isinstance(s.numa, Missing) else ()
    return CpuSet(cpu for node in nodes for cpu in known(node.cpus, CpuSet()))
