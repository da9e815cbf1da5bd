"""What each program of the session begins with, beside its environment and its limits: signals, the mode of new files, /dev/null."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice
from torchtune_sys.model.facts.session import HandedDown
from torchtune_sys.model.rule import Evidence, Params, Rule, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, need, need_if_there

_SOURCE = "/proc/self/status"
_CHILDREN = (
    "the kernel keeps no exit status of children (waitpid: ECHILD), so a rank, a worker or a compiler that failed counts as done"
)
_END = "torchrun, Slurm and Kubernetes end ranks with it: they are killed after a time-out instead, without a last checkpoint"
_IGNORED = {"SIGCHLD": _CHILDREN, "SIGTERM": _END}
_BLOCKED = {
    "SIGCHLD": "who waits for it never learns that a child ended",
    "SIGTERM": _END,
    "SIGINT": "Ctrl-C does not reach the program",
    "SIGUSR1": "what is to save a checkpoint at this signal (Slurm --signal, submitit) never does",
    "SIGUSR2": "what is to save a checkpoint at this signal (Slurm --signal, submitit) never does",
}


def _handed_down(s: Snapshot) -> HandedDown:
    return need_if_there(need(s.session).handed_down, "this system does not tell it of a process")


@rule(
    id="signals-kept-from-programs",
    title="Programs of this session start with signals ignored or blocked that training needs",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="start the job from another session; or find what sets it: trap '' in a script, or a supervisor that ignores SIGCHLD or blocks "
            "signals before it starts programs"
        ),
        Advice(text="env --default-signal COMMAND (coreutils 8.31 and later) starts a command with all signals as usual"),
    ),
)
def signals_kept(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """SIGCHLD or SIGTERM is ignored, or SIGCHLD, SIGTERM, SIGINT, SIGUSR1 or SIGUSR2 is blocked; each program that is started inherits this.

    Why it matters
    With SIGCHLD ignored the exit status of a child is lost: subprocess reports 0 for a command that failed. A rank that does not get SIGTERM
    holds its GPU until it is killed, and saves nothing.

    When to leave it
    Something in the job sets its signals itself at its start, the mask included. (SIGINT that is ignored, as in background jobs of a shell, and
    SIGHUP, as with nohup, are not reported.)

    References
    execve(2) and signal(7): what is ignored stays ignored, and the mask is kept; sigaction(2), waitpid(2): SIGCHLD ignored
    https://docs.pytorch.org/docs/stable/elastic/multiprocessing.html (SIGTERM, then SIGKILL after 30 s)
    """
    found = _handed_down(s)
    for names, kind, effects in ((found.ignored, "ignored", _IGNORED), (found.blocked, "blocked", _BLOCKED)):
        for name in names:
            if name in effects:
                yield Evidence(subject=name, seen=f"{kind}: {effects[name]}", wanted="as usual", source=_SOURCE)


_OF_OWNER = 0o700


@rule(
    id="umask-shuts-owner-out",
    title="The session's umask takes from new files what their owner needs",
    severity=Severity.WARNING,
    fix=(Advice(text="umask 022 (or 027, 077), in the shell's profile, the service (UMask=) or the job's script"),),
)
def umask_shuts_owner_out(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The umask clears the owner's own permission to read or write, or to enter the directories that it makes.

    Why it matters
    Files that the job writes can then not be opened again by itself, unless it runs as root: checkpoints, caches of compiled kernels, and
    directories that nothing can be created in.

    When to leave it
    The job runs as root, which no mode keeps out.

    References
    umask(2); path_resolution(7)
    """
    mask = _handed_down(s).umask
    if isinstance(mask, Missing):
        raise NotApplicable("this kernel does not tell it")
    yield Evidence(
        subject="umask",
        seen=f"{mask:04o}",
        wanted="0022, or another that leaves the owner's permissions",
        verdict=Verdict.FAIL if mask & _OF_OWNER and need(need(s.session).uid) != 0 else Verdict.PASS,
        source=_SOURCE,
    )


_RANDOM = ("1:8", "1:9")
_DEVICES = {"/dev/null": ("1:3",), "/dev/zero": ("1:5",), "/dev/random": _RANDOM, "/dev/urandom": _RANDOM}


@rule(
    id="device-file-broken",
    title="/dev/null, or a device like it, is missing or is not what it should be",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="as root: rm -f /dev/null; mknod -m 666 /dev/null c 1 3 (zero: c 1 5, random: c 1 8, urandom: c 1 9), or restart the host"
        ),
        Advice(text="in a container or chroot: start it with the runtime's own /dev, or mount the host's nodes into it"),
    ),
)
def device_file_broken(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """/dev/null, zero, random or urandom does not exist, is an ordinary file, leads to another device, or may not be opened by this user.

    Why it matters
    What programs throw away fills the disk instead, reading never ends at once, and children get what others wrote; or they fail with "No such
    file or directory: '/dev/null'" or "Permission denied". A root shell makes an ordinary file of it when the node is gone (rm, then > /dev/null).

    When to leave it
    Never: each of them is part of any Linux system.

    References
    null(4), random(4); Linux Documentation/admin-guide/devices.txt
    """
    found = need(s.session).devices
    for path, seen in need(found).items():
        yield Evidence(
            subject=path,
            seen=seen,
            wanted=f"device {_DEVICES[path][0]}" if path in _DEVICES else "",
            verdict=Verdict.PASS if seen in _DEVICES.get(path, (seen,)) else Verdict.FAIL,
            source=path,
        )


RULES: tuple[Rule, ...] = (signals_kept, umask_shuts_owner_out, device_file_broken)
