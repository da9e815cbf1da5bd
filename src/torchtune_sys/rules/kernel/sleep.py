"""A rule on machines that go to sleep."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, known
from torchtune_sys.rules.kernel.common import DAYS, none_logged, recent, seen_in_log


@rule(
    id="host-suspended-logged",
    title="The machine was suspended in the last days",
    severity=Severity.ADVICE,
    fix=(
        Advice(
            text="keep it awake while it trains: systemd-inhibit --what=sleep torchrun ..., or for good: sudo systemctl mask sleep.target suspend.target "
            "hibernate.target hybrid-sleep.target (GNOME: Settings, Power, Automatic Suspend; it suspends at the login screen, too)"
        ),
    ),
    params=(DAYS,),
)
def host_suspended_logged(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The kernel's log says that the machine was put to sleep.

    Why it matters
    GNOME puts an idle machine to sleep by default, with a login by ssh or a training run, too: nothing of that counts as use. The run stands still, connections of a
    job end, and CUDA often fails after waking ("unspecified launch failure", "unknown error").

    When to leave it
    Nothing trains unattended here. Laptops are not reported.

    References
    Linux kernel/power/suspend.c; systemd-inhibit(1), systemd-sleep.conf(5)
    https://wiki.debian.org/Suspend (Disable suspend and hibernation)
    """
    if not isinstance(s.hardware, Missing) and known(s.hardware.portable, False):
        raise NotApplicable("a laptop: it is meant to sleep")
    found = recent(s, p, "suspended")
    if found:
        yield seen_in_log(s, "machine", "it was put to sleep", found, "awake while it trains")
    else:
        yield from none_logged(s, "machine", "suspension")
