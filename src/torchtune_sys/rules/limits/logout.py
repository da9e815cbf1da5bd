"""What systemd-logind removes or ends when a user logs out."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Needs, OwnedFile
from torchtune_sys.model.rule import Evidence, Params, Severity, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, absent, need, need_if_there
from torchtune_sys.rules.gates import not_in_container
from torchtune_sys.rules.limits.common import verdict_on


@rule(
    id="logind-removes-ipc",
    title="logind deletes the shared memory of Slurm jobs when their user logs out",
    severity=Severity.WARNING,
    fix=(
        OwnedFile(
            path="/etc/systemd/logind.conf.d/90-torchtune-sys.conf",
            content="[Login]\nRemoveIPC=no\n",
            needs=Needs.SERVICE_RESTART,
        ),
    ),
    applies=not_in_container,
)
def logind_removes_ipc(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """RemoveIPC is on, and Slurm jobs on this host do not run in login sessions of their users.

    Why it matters
    When a user's last login session ends, logind deletes the user's files in /dev/shm, even while a job is running: NCCL and
    DataLoader workers fail with bus errors and "unable to open shared memory object", seemingly at random.

    When to leave it
    Users never log in to this node, or jobs run as a system user (UID below 1000), which logind exempts.

    References
    logind.conf(5), RemoveIPC; NVIDIA/deepops, roles/slurm, shmfix; NCCL user guide, Troubleshooting, "Shared memory".
    """
    limits = need(s.limits)
    if absent(limits.remove_ipc):
        raise NotApplicable("systemd-logind is not installed")
    if not need(limits.slurm):
        raise NotApplicable("no Slurm here: jobs run in login sessions or services of their own")
    on = need(limits.remove_ipc)
    yield Evidence(
        subject="RemoveIPC",
        seen="yes" if on else "no",
        wanted="no",
        verdict=verdict_on(on),
        source=limits.remove_ipc_source,
    )


@rule(
    id="logind-kills-processes",
    title="logind ends all processes of a user at logout, including those under tmux and nohup",
    severity=Severity.ADVICE,
    fix=(
        Advice(text="KillUserProcesses=no in a file of /etc/systemd/logind.conf.d, then systemctl restart systemd-logind"),
        Advice(
            text="or start the training outside of the login session: loginctl enable-linger, then systemd-run --user --scope COMMAND"
        ),
    ),
    applies=not_in_container,
)
def logind_kills_processes(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """KillUserProcesses is on, or KillOnlyUsers names this user: the processes of a login session get SIGTERM, then SIGKILL, when it ends.

    Why it matters
    A training that was started by hand dies when its terminal or its connection does, whatever keeps it from SIGHUP (nohup, disown, tmux, screen).
    Nothing in its output tells why.

    When to leave it
    Jobs are started by a batch system or as services, which are in no login session; or the site forbids that anything is left behind.

    References
    logind.conf(5), KillUserProcesses, KillOnlyUsers, KillExcludeUsers (root is left by default); loginctl(1), enable-linger
    """
    source = need_if_there(need(s.limits).kills_at_logout, "systemd-logind is not installed")
    if need(need(s.limits).slurm):
        raise NotApplicable("Slurm's jobs run in no login session")
    yield Evidence(
        subject="KillUserProcesses",
        seen="no" if not source else "for this user" if "KillOnlyUsers" in source else "yes",
        wanted="no",
        verdict=verdict_on(bool(source)),
        source=source or "logind.conf",
    )
