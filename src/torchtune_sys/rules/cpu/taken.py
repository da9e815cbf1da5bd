"""Processor time that this session is kept from: by the hypervisor, by the quota of its control group, by its priority."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import absent, known, need, need_if_there
from torchtune_sys.rules.cpu.common import some


@rule(
    id="cpu-time-stolen",
    title="The hypervisor takes processor time away from this virtual machine",
    severity=Severity.WARNING,
    params=(
        Param("percent", 10, "share of the processor time asked for since boot that is stolen, from which on it is reported"),
        Param("least_minutes", 10, "processor time asked for since boot below which the share says nothing, minutes"),
    ),
    fix=(
        Advice(
            text="move the machine to another host, or to an instance type with CPUs of its own (dedicated, not burstable or shared)"
        ),
        Advice(text="your own hypervisor: give its machines fewer virtual CPUs than it has threads, or pin them"),
    ),
)
def cpu_time_stolen(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A good part of the time that this machine's processors wanted to work since boot, the hypervisor ran other machines on them.

    What is judged is steal / (steal + user + nice + system + irq + softirq): of an idle machine nothing is stolen.

    Why it matters
    A virtual CPU that is not running cannot launch kernels, feed the GPU or answer a collective; and with a lock held, the other CPUs
    wait as well. All ranks wait for the slowest one. Nothing inside the machine shows it but this counter.

    When to leave it
    The machine shared its host at another time, and does so no longer (top, field "st"). VMware and Hyper-V mostly report no stolen time at all.

    References
    proc_stat(5), steal; Linux Documentation/virt/kvm/x86/msr.rst (MSR_KVM_STEAL_TIME)
    https://samber.github.io/awesome-prometheus-alerts/rules (HostCpuStealNoisyNeighbor: a warning above 10 %)
    """
    cpu = need(s.cpu)
    stolen, busy = need_if_there(cpu.stolen_s, "this system keeps no processor times"), need(cpu.busy_s)
    asked = stolen + busy
    share = 100 * stolen / asked if asked else 0.0
    enough = asked >= 60 * float(p["least_minutes"])
    yield Evidence(
        subject="processor time",
        seen=f"{share:.1f} % of {asked / 3600:.1f} hours stolen since boot",
        wanted=f"less than {p['percent']} %",
        verdict=Verdict.FAIL if enough and share >= float(p["percent"]) else Verdict.PASS,
        source="/proc/stat",
    )


@rule(
    id="cpu-quota-throttles",
    title="The CPU quota has often stopped this session's processes",
    severity=Severity.WARNING,
    params=(
        Param("percent", 25, "share of the periods in which the quota was used up, from which on it is reported"),
        Param("least_periods", 600, "periods below which the share says nothing (a period is 100 ms mostly)"),
    ),
    fix=(
        Advice(
            text="raise the quota: docker run --cpus, resources.limits.cpu (Kubernetes; or leave it out), CPUQuota= (systemd)"
        ),
        Advice(text="or run fewer threads and workers: OMP_NUM_THREADS x ranks + workers within the quota"),
    ),
)
def cpu_quota_throttles(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """In many periods of the control group's lifetime the kernel stopped all its tasks, since they had used up the quota.

    Why it matters
    A rank that is stopped for the rest of a period of 100 ms launches no kernels and answers no collective, and all other ranks wait for
    it. Usage in top or in a dashboard looks harmless, as it is averaged over many periods.

    When to leave it
    It was an installation or a compilation that used up the quota, not the training.

    References
    Linux Documentation/scheduler/sched-bwc.rst (nr_periods, nr_throttled)
    https://github.com/kubernetes-monitoring/kubernetes-mixin (CPUThrottlingHigh: more than 25 % of the periods)
    """
    cpu = need(s.cpu)
    need(cpu.quota)
    periods, throttled = need_if_there(cpu.quota_periods, "no CPU quota"), need(cpu.quota_throttled)
    share = 100 * throttled / periods if periods else 0.0
    yield Evidence(
        subject="CPU quota",
        seen=f"{some(need(cpu.quota), 'CPU')}; throttled in {share:.0f} % of {periods} periods",
        wanted=f"in less than {p['percent']} %",
        verdict=Verdict.FAIL if periods >= int(p["least_periods"]) and share >= float(p["percent"]) else Verdict.PASS,
        source=f"{cpu.quota_source.rpartition('/')[0]}/cpu.stat",
    )


_GROUP_SHARE = Advice(
    text="a service or a container: remove Nice=, CPUSchedulingPolicy= or a low CPUWeight= (systemd), --cpu-shares (docker), cpu.idle of the "
    "cgroup; in Kubernetes request the CPUs (resources.requests.cpu): a container that requests none has the least share"
)


@rule(
    id="session-scheduled-last",
    title="The session has the lowest scheduling priority",
    severity=Severity.ADVICE,
    params=(
        Param("nice", 15, "nice value from which on it is reported: a twentieth of an ordinary task's share, or less"),
        Param("weight_pct", 5, "share of a control group, in percent of that of one that nobody set, below which it is reported"),
    ),
    fix=(
        Advice(
            text="start the job from a session without nice or chrt; to raise it again: sudo renice -n 0 -p PID, sudo chrt -o -p 0 PID"
        ),
        _GROUP_SHARE,
    ),
)
def session_scheduled_last(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The session, and so each rank and worker that it starts, runs with a high nice value, under SCHED_IDLE, or in a control group that is idle or
    has a small share.

    Why it matters
    Any other process that wants a CPU goes first: a rank then launches kernels late, and all others wait for it. On an idle host it
    makes no difference, so the cause is hard to find.

    When to leave it
    Training is to give way to everything else on this host.

    References
    sched(7), SCHED_IDLE and the nice value; kernel/sched/core.c, sched_prio_to_weight (36 for nice 15, 1024 for 0)
    Linux Documentation/admin-guide/cgroup-v2.rst, cpu.idle and cpu.weight; https://kubernetes.io/docs/concepts/configuration/manage-resources-containers/
    """
    cpu = need(s.cpu)
    if not known(cpu.idle_group, "") or not absent(cpu.nice):
        nice = need_if_there(cpu.nice, "this system does not tell the priority of a process")
        policy = need(cpu.scheduling)
        low = policy == "idle" or (policy in ("other", "batch") and nice >= int(p["nice"]))
        yield Evidence(
            subject="priority",
            seen=f"nice {nice}, SCHED_{policy.upper()}",
            wanted=f"nice below {p['nice']}, SCHED_OTHER",
            verdict=Verdict.FAIL if low else Verdict.PASS,
            source="/proc/self/stat",
        )
    weight = known(cpu.weight, 1.0)
    if 100 * weight < float(p["weight_pct"]):
        yield Evidence(
            subject="control group",
            seen=f"{100 * weight:.1f} % of the usual share of the CPUs",
            wanted=f"{p['weight_pct']} % or more",
            source=cpu.weight_source,
            fix=(_GROUP_SHARE,),
        )
    group = need(cpu.idle_group)
    if group:
        yield Evidence(subject="control group", seen="cpu.idle is 1", wanted="0", source=group, fix=(_GROUP_SHARE,))
