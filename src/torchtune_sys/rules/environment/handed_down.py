"""What each program of the session begins with, beside its environment and its limits: signals, the mode of new files, names of the machine, /dev/null."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, Needs
from torchtune_sys.model.facts.session import HandedDown
from torchtune_sys.model.rule import Evidence, Param, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, Why, absent_or_unrecorded, known, need, need_if_there

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
    title="The session's umask withholds permissions from the owner of new files",
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


@rule(
    id="session-names-32-bit-machine",
    title="uname reports a 32-bit machine in this session, though the machine is 64-bit",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="start the job from a session without setarch, linux32 or Personality=x86 of a service; linux64 COMMAND takes it back"
        ),
    ),
)
def session_names_32_bit_machine(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """uname names i686 (or armv8l) to each program of this session, as setarch linux32 has it.

    Why it matters
    pip looks for 32-bit wheels, of which torch has none ("No matching distribution found"), and builds extensions for them. torch.compile does not
    know the processor and writes code for CPUs without vector instructions.

    When to leave it
    The session builds 32-bit packages.

    References
    personality(2), PER_LINUX32; setarch(8); pytorch torch/_inductor/cpu_vec_isa.py (platform.machine; tried with torch 2.13: no instruction set is left)
    """
    persona = need_if_there(_handed_down(s).personality, "this kernel does not tell it")
    yield Evidence(
        subject="uname -m",
        seen=f"{known(need(s.system).machine, '32-bit')}, by a personality of {persona:08x}",
        wanted="the machine's own name",
        verdict=Verdict.FAIL if persona & 0xFF == _LINUX32 else Verdict.PASS,
        source="/proc/self/personality",
    )


_LINUX32 = 8


@rule(
    id="timer-slack-large",
    title="Timers of this session's programs may fire late",
    severity=Severity.WARNING,
    fix=(Advice(text="start the job from another session; a service: remove TimerSlackNSec= from its unit"),),
    params=(Param("max_ms", 10, "timer slack from which on it is reported, ms (the kernel's own is 0.05)"),),
)
def timer_slack_large(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """The timer slack of the session, and so of each rank and worker that it starts, is larger than steps and polls are long.

    Why it matters
    The kernel may end each sleep, poll and wait with a time-out so much later. What polls (a store, a queue of a DataLoader, a transport over TCP) waits
    that long each time, and one rank that is late keeps all others.

    When to leave it
    The programs run with a real-time policy, which has no slack.

    References
    prctl(2), PR_SET_TIMERSLACK; systemd.exec(5), TimerSlackNSec=
    """
    slack = need_if_there(_handed_down(s).timer_slack_ns, "this kernel does not tell it")
    yield Evidence(
        subject="timer slack",
        seen=f"{slack / 1e6:g} ms",
        wanted=f"{p['max_ms']} ms or less",
        verdict=Verdict.FAIL if slack > float(p["max_ms"]) * 1e6 else Verdict.PASS,
        source="/proc/self/timerslack_ns",
    )


_REFUSED = {
    "code": (
        "memory that is written, then executed",
        "oneDNN compiles no kernel there (could not create a primitive), nor do other compilers at run time",
    ),
    "netlink": (
        "netlink sockets",
        "getifaddrs fails, so that neither Gloo nor NCCL finds a network interface, not even the loopback's",
    ),
}


@rule(
    id="system-calls-refused",
    title="A seccomp filter or a security policy refuses this session system calls that torch needs",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="a systemd unit: MemoryDenyWriteExecute=no, and AF_NETLINK beside the families in RestrictAddressFamilies=",
            needs=Needs.NEW_PROCESS,
        ),
        Advice(
            text="a container: another seccomp profile (--security-opt seccomp=FILE); SELinux: setsebool deny_execmem off",
            needs=Needs.NEW_PROCESS,
        ),
    ),
)
def system_calls_refused(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """This process may not have memory that is written and then executed, or may open no netlink socket. What it starts inherits that.

    Why it matters
    Convolutions and bfloat16 products on the CPU run code that oneDNN generates: "could not create a primitive". Without netlink, process
    groups of Gloo and NCCL fail: "Address family not supported by protocol", "no socket interface found".

    When to leave it
    Training runs in another session or service, which has no such filter.

    References
    systemd.exec(5), MemoryDenyWriteExecute=, RestrictAddressFamilies=; prctl(2), PR_SET_MDWE; seccomp(2)
    glibc sysdeps/unix/sysv/linux/ifaddrs.c (getifaddrs asks over netlink); oneDNN src/cpu/jit_utils; tried with torch 2.13
    """
    found = need_if_there(need(s.session).refusals, "nobody tried")
    for name, (subject, effect) in _REFUSED.items():
        if name not in found:
            yield unsure(subject, Missing(Why.UNPARSED, "session", "not in the answer"))
            continue
        yield Evidence(
            subject=subject,
            seen=f"{found[name]}: {effect}" if found[name] else "allowed",
            wanted="allowed",
            verdict=Verdict.FAIL if found[name] else Verdict.PASS,
            source="mmap(2)" if name == "code" else "socket(2)",
        )


_RANDOM = ("1:8", "1:9")
_DEVICES = {"/dev/null": ("1:3",), "/dev/zero": ("1:5",), "/dev/random": _RANDOM, "/dev/urandom": _RANDOM}


@rule(
    id="device-file-broken",
    title="A device file (/dev/null, a similar one, or a GPU's) is missing or wrong",
    severity=Severity.WARNING,
    fix=(
        Advice(
            text="as root: rm -f /dev/null; mknod -m 666 /dev/null c 1 3 (zero: c 1 5, random: c 1 8, urandom: c 1 9), or restart the host"
        ),
        Advice(text="in a container or chroot: start it with the runtime's own /dev, or mount the host's nodes into it"),
    ),
)
def device_file_broken(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """/dev/null, zero, random or urandom does not exist, is an ordinary file, leads to another device, or may not be opened by this user; or a node
    of a GPU's driver (/dev/nvidia0, nvidiactl, nvidia-uvm, kfd) leads to another device than the driver's.

    Why it matters
    What programs throw away fills the disk instead, reading never ends at once, and children get what others wrote; or they fail with "No such
    file or directory: '/dev/null'" or "Permission denied". A root shell makes an ordinary file of it when the node is gone (rm, then > /dev/null).

    Nodes of GPUs are wrong after a change of drivers where they were made by hand, by an image or by a container's start: nvidia-uvm gets another
    major number at each load of its module. CUDA then finds no device, or another GPU than that of the name.

    When to leave it
    Never: each of them is part of any Linux system. nvidia-modprobe, where it is installed, recreates a GPU's nodes.

    References
    null(4), random(4); Linux Documentation/admin-guide/devices.txt (195: NVIDIA)
    NVIDIA/nvidia-modprobe modprobe-utils/nvidia-modprobe-utils.c (numbers of the nodes, /proc/devices)
    """
    yield from _nodes_of_gpus(s)
    found = s.session if isinstance(s.session, Missing) else s.session.devices
    if isinstance(found, Missing):  # a paste tells of the GPUs' nodes alone
        yield unsure("/dev/null", found)
        return
    for path, seen in found.items():
        yield Evidence(
            subject=path,
            seen=seen,
            wanted=f"device {_DEVICES[path][0]}" if path in _DEVICES else "",
            verdict=Verdict.PASS if seen in _DEVICES.get(path, (seen,)) else Verdict.FAIL,
            source=path,
        )


def _nodes_of_gpus(s: Snapshot) -> Iterator[Evidence]:
    driver = s.driver
    if isinstance(driver, Missing):
        if not absent_or_unrecorded(driver):
            yield unsure("/dev/nvidia*", driver)
        return
    computing = () if isinstance(driver.compute_node, Missing) else (driver.compute_node,)
    if isinstance(driver.device_nodes, Missing) and not absent_or_unrecorded(driver.device_nodes):
        yield unsure("/dev/nvidia*", driver.device_nodes)
    for node in (*known(driver.device_nodes, ()), *computing):
        if node.device and node.driver_device and node.device != node.driver_device:
            yield Evidence(
                subject=node.path, seen=node.device, wanted=f"device {node.driver_device}", source=node.path, fix=(_MADE_ANEW,)
            )


_MADE_ANEW = Advice(
    text="sudo rm the node, then sudo nvidia-modprobe -c0 -u, or nvidia-smi as root (/dev/kfd: restart udev); a container: restart it, with "
    "the nodes of its runtime (--gpus, --device), not of an image"
)
