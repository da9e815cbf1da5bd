"""Rules on kernel settings that the next boot will lose or change."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.sysctl import Assignment, Setting
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, need
from torchtune_sys.rules.gates import not_in_container
from torchtune_sys.rules.sysctl.kernel import swappiness_high
from torchtune_sys.rules.sysctl.policy import agree, default_at_boot, meets, policies_here, proc


def systemd_host(s: Snapshot) -> None:
    """Require that the host's own configuration is in view, and that systemd-sysctl applies it."""
    not_in_container(s)
    init = need(need(s.system).init)
    if init != "systemd":
        raise NotApplicable(f"process 1 is {init}, not systemd: nothing applies sysctl.d by itself")


def _unreadable(found: Setting) -> Missing | None:
    return found.boot if isinstance(found.boot, Missing) and found.boot.why is not Why.ABSENT else None


@rule(
    id="sysctl-not-applied",
    title="A configured kernel setting is not in effect",
    severity=Severity.ADVICE,
    fix=(
        Advice(
            text="sysctl --system applies the files now; if the value changes back, find out what sets it later (tuned, a "
            "container runtime)"
        ),
    ),
    applies=systemd_host,
    asks=(swappiness_high,),
)
def sysctl_not_applied(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """A file, tuned or the kernel command line sets the right value, but the kernel runs with a different one.

    Why it matters
    Until somebody reboots it, the host does not behave as configured; then its behaviour changes unexpectedly.

    When to leave it
    The value was changed by hand for an experiment.

    References
    sysctl.d(5), sysctl(8).
    """
    settings, unknown = policies_here(s, p)
    yield from (unsure(key, missing) for key, missing in unknown)
    for policy, found, running, target in settings:
        if isinstance(found.boot, Missing):
            if (why := _unreadable(found)) is not None and not meets(target, running):
                yield unsure(policy.key, why)
            continue
        pending = meets(target, found.boot.value) and not meets(target, running)
        yield Evidence(
            subject=policy.key,
            seen=f"{running} running, {found.boot.value} configured",
            wanted=str(target),
            verdict=Verdict.FAIL if pending else Verdict.PASS,
            source=found.boot.source,
        )


@rule(
    id="sysctl-lost-at-reboot",
    title="A kernel setting is correct now but will be lost at the next boot",
    severity=Severity.ADVICE,
    fix=(Advice(text="write the value to your own file in /etc/sysctl.d whose name sorts last (99-zz-….conf)"),),
    applies=systemd_host,
    asks=(swappiness_high,),
)
def sysctl_lost_at_reboot(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The current value suits training; the one that the next boot sets (from a file, tuned, or the kernel default) does not.

    Why it matters
    The value was set by hand with sysctl -w. After the next reboot the host behaves as before, and nobody remembers why it used
    to work well.

    When to leave it
    A service or a Slurm prolog sets it at each start.

    References
    sysctl.d(5), sysctl(8).
    """
    settings, unknown = policies_here(s, p)
    yield from (unsure(key, missing) for key, missing in unknown)
    for policy, found, running, target in settings:
        if not meets(target, running):
            continue
        if (why := _unreadable(found)) is not None:
            yield unsure(policy.key, why)
            continue
        after = default_at_boot(s, policy) if isinstance(found.boot, Missing) else found.boot.value
        if isinstance(after, Missing):
            yield unsure(policy.key, after, str(target))
            continue
        where = "the kernel's default: no file sets it" if isinstance(found.boot, Missing) else found.boot.source
        yield Evidence(
            subject=policy.key,
            seen=f"{running} now, {after} after a reboot",
            wanted=str(target),
            verdict=Verdict.PASS if meets(target, after) else Verdict.FAIL,
            source=where,
        )


@rule(
    id="sysctl-overridden",
    title="A correct kernel setting is overridden by a later one",
    severity=Severity.ADVICE,
    fix=(
        Advice(
            text="remove the line that takes effect, or move yours to a file whose name sorts after it (and, for tuned, into "
            "/etc/sysctl.d)"
        ),
    ),
    applies=systemd_host,
    asks=(swappiness_high,),
)
def sysctl_overridden(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """One line sets the right value, but another line that is read later sets a wrong one.

    Why it matters
    The file that people look at says one thing, but the kernel does another.

    When to leave it
    The later file has the value you want.

    References
    sysctl.d(5): of all directories together, the file whose name sorts last wins. tuned-main.conf, reapply_sysctl.
    """
    settings, unknown = policies_here(s, p)
    yield from (unsure(key, missing) for key, missing in unknown)
    for policy, found, _running, target in settings:
        if isinstance(found.boot, Missing):
            if (why := _unreadable(found)) is not None and found.assignments:
                yield unsure(policy.key, why)
            continue
        if meets(target, found.boot.value):
            yield Evidence(
                subject=policy.key, seen=found.boot.value, wanted=str(target), verdict=Verdict.PASS, source=found.boot.source
            )
            continue
        lost = [made for made in _all(found) if meets(target, made.value)]
        for made in lost:
            yield Evidence(
                subject=policy.key,
                seen=f"{made.value} in {made.source}, but {found.boot.value} in {found.boot.source} wins",
                wanted=str(target),
                source=found.boot.source,
            )


def _all(found: Setting) -> list[Assignment]:
    others = [made for made in (found.tuned, found.cmdline) if not isinstance(made, Missing)]
    return [*others, *found.assignments]


@rule(
    id="sysctl-tools-disagree",
    title="systemd-sysctl and sysctl --system set different values",
    severity=Severity.ADVICE,
    fix=(
        Advice(text="set the key only once: move it from /etc/sysctl.conf to a file in /etc/sysctl.d, or remove the other line"),
    ),
    applies=systemd_host,
    asks=(swappiness_high,),
)
def sysctl_tools_disagree(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """systemd-sysctl, which runs at boot, and procps' sysctl --system, run by hand, result in different values.

    Why it matters
    procps reads /etc/sysctl.conf after everything else; systemd reads it only through a symlink, in the order of the symlink's
    name. So the value changes when somebody runs sysctl --system, and changes back at the next boot.

    When to leave it
    Nobody uses sysctl --system here.

    References
    sysctl.d(5); sysctl(8) of procps-ng, "System file precedence".
    """
    settings, unknown = policies_here(s, p)
    yield from (unsure(key, missing) for key, missing in unknown)
    for policy, found, _running, target in settings:
        first, second = found.systemd, found.procps
        blind = next((made for made in (first, second) if isinstance(made, Missing) and made.why is not Why.ABSENT), None)
        if blind is not None:
            yield unsure(policy.key, blind)
            continue
        if isinstance(first, Missing) and isinstance(second, Missing):
            continue
        same = not isinstance(first, Missing) and not isinstance(second, Missing) and agree(first.value, second.value)
        yield Evidence(
            subject=policy.key,
            seen=f"at boot {_said(first)}; by sysctl --system {_said(second)}",
            wanted=str(target),
            verdict=Verdict.PASS if same else Verdict.FAIL,
            source=proc(policy.key),
        )


def _said(made: Assignment | Missing) -> str:
    return "not set" if isinstance(made, Missing) else f"{made.value} ({made.source})"
