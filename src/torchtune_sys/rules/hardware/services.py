"""Rules on other services of the host that take CPU time or memory."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Unknown, absent, known, need
from torchtune_sys.rules.gates import not_in_container


@rule(
    id="service-takes-resources",
    title="A background service takes CPU time or memory from training",
    severity=Severity.ADVICE,
    fix=(Advice(text="find out what it does (systemctl status UNIT), and pause it or move it elsewhere while a job trains"),),
    params=(
        Param(
            "cores",
            0.25,
            "average CPU use, in cores, from which on a unit is reported (a convention; there is no published value)",
        ),
        Param("memory_percent", 5, "share of the host's memory from which on a unit is reported, percent (a convention)"),
    ),
    applies=not_in_container,
)
def service_takes_resources(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """During one second, a unit other than the job used a good part of a core or a lot of memory (measured only with --live).

    Why it matters
        DataLoader workers and the ranks' own threads compete with it for cores, and collectives wait for the rank that was
        interrupted. Memory that it uses is not available for the page cache.

    When to leave it
        It serves the job (a parallel file system client, a scheduler agent, monitoring), or that second was not typical: check
        again, for example with systemd-cgtop.

    References
        proc_pid_stat(5), utime and stime; systemd-cgtop(1)
    """
    found = need(s.hardware).services
    if absent(found):
        raise NotApplicable("measured only with --live")
    memory = need(s.memory).total_bytes
    total = known(memory, 0)
    heavy = False
    for unit in need(found):
        share = 100 * unit.rss_bytes / total if total > 0 else 0.0
        if unit.cores >= float(p["cores"]) or share >= float(p["memory_percent"]):
            heavy = True
            yield Evidence(
                subject=unit.name,
                seen=f"{unit.cores:.2f} cores, {unit.wakeups_per_s:.0f} wake-ups/s, {unit.rss_bytes / (1 << 20):.0f} MiB ({share:.1f} %)",
                wanted=f"< {p['cores']} cores, < {p['memory_percent']} % of memory",
                source="/proc/PID/stat, over a second",
            )
    if not heavy:
        if isinstance(memory, Missing) and need(found):
            raise Unknown(memory)
        yield Evidence(
            subject="services", seen=f"{len(need(found))} units, none of them busy", verdict=Verdict.PASS, source="/proc/PID/stat"
        )
