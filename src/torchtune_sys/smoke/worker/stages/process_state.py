"""What a process inherits from whoever started it, and what Python and torch let a plug-in change without a word."""

from __future__ import annotations

import codecs
import contextlib
import ctypes
import errno
import gc
import mmap
import multiprocessing
import os
import resource
import signal
import socket
import stat
import sys
import threading
import time
from typing import Any, Callable, Dict, Iterator, List, Tuple

import torch

from torchtune_sys.smoke.worker.context import RankContext, StageFailed, torch_has_reached
from torchtune_sys.smoke.worker.measures import times_of_thread

_TELLING = ("SIGTERM", "SIGINT", "SIGUSR1", "SIGUSR2", "SIGCHLD")
"""What tells a training to save and leave before it is preempted (torchrun, Slurm, Lightning), and that a child has ended."""
_YES = 77
"""The exit status of a child that a signal did not end."""
_SPIN_LOOKS, _SPIN_S, _SPIN_SHARE, _SPIN_RAN = 4, 0.05, 0.8, 0.03
"""Of each of so many looks, which are over at the first at which nobody computes. A thread that wakes now and then waits for a CPU on a crowded host, too, but hardly runs."""
_CLOCK_S = 0.02
_CLOCK_LOOKS = 400
_CLOCK_OFF = 0.02
_CLOCK_WRONG_S = 5.0
_FEW_NUMBERS, _MANY_NUMBERS, _TENSORS = 25000, 1 << 18, 30
"""100 kB, below what the C library maps by itself (128 KiB); on pages of 64 KiB still one of them. And 1 MiB."""
_WHO_STARTED = "look who starts the ranks: a service manager, nohup, a wrapper, sitecustomize"
_CHILDREN_AT_START = signal.getsignal(signal.SIGCHLD)
_END_AT_START = signal.getsignal(signal.SIGTERM)
_WRITES_AT_START = signal.getsignal(signal.SIGPIPE)
_CLOCKS_AT_START = time.time() - time.monotonic()
_BLOCKED_AT_START = signal.pthread_sigmask(signal.SIG_BLOCK, ())


def process_is_as_started(here: RankContext) -> None:
    """Check that the process has its descriptors, its signals, its clocks, and the settings that Python and torch begin with."""
    for check in (
        _streams_are_open,
        _streams_take_any_text,
        _signals_arrive,
        _nobody_stays,
        _nobody_spins,
        _clocks_go_on,
        _freed_memory_stays,
        _nothing_was_switched,
    ):
        check()
    if here.kind == "cpu":
        _code_can_be_made()


def _streams_are_open() -> None:
    """Check that both are there: a file that is opened gets the lowest free number: with 1 or 2 closed, what is printed goes into a checkpoint or a socket (stdio(3))."""
    for number, name, kind in ((1, "standard output", "stdout-closed"), (2, "standard error", "stdout-closed")):
        try:
            mode = os.fstat(number).st_mode
            os.write(number, b"")
        except OSError as error:
            seen = "%s (descriptor %d) is closed: the next file that is opened gets what is printed (%s)"
            raise StageFailed(kind, seen % (name, number, error.strerror), _WHO_STARTED) from error
        if stat.S_ISDIR(mode):
            raise StageFailed(kind, "%s (descriptor %d) is a directory: nothing can be printed" % (name, number), _WHO_STARTED)


def _streams_take_any_text() -> None:
    """Check that a sign beyond ASCII ends no training: Python takes UTF-8 in the locale C, too, unless it is told otherwise (PEP 538 and 540)."""
    for name, stream in (("standard output", sys.stdout), ("standard error", sys.stderr)):
        try:
            "\u2588".encode(stream.encoding, stream.errors or "strict")
        except UnicodeEncodeError:
            if codecs.lookup(stream.encoding).name == "ascii":
                chosen = "".join(
                    "; %s=%s" % (one, os.environ[one]) for one in ("PYTHONIOENCODING", "PYTHONUTF8") if one in os.environ
                )
                seen = "%s takes ASCII alone: whatever prints another sign (a name, a generated text, a progress bar) ends the training with UnicodeEncodeError%s"
                remedy = "unset PYTHONIOENCODING, or PYTHONUTF8=1; look for who changes sys.stdout (sitecustomize, a plug-in)"
                raise StageFailed("stdout-encoding", seen % (name, chosen), remedy) from None
        except (AttributeError, LookupError, TypeError):  # none, or somebody's own
            continue


def _code_can_be_made() -> None:
    """Check that memory which was written may be executed: oneDNN, with which torch convolves and multiplies on a CPU, writes its code as it runs, and says only that it "could
    not create a primitive". Asked as its assembler does (mprotect(2); oneDNN, third_party/xbyak)."""
    size, private, both, all_three = mmap.PAGESIZE, 0x22, 3, 7
    try:
        library = ctypes.CDLL(None, use_errno=True)
        library.mmap.restype = ctypes.c_void_p
        library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
        place = library.mmap(None, size, both, private, -1, 0)
        if place in (None, ctypes.c_void_p(-1).value):
            return
        refused = ctypes.get_errno() if library.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(size), all_three) else 0
        library.munmap(ctypes.c_void_p(place), ctypes.c_size_t(size))
    except (OSError, AttributeError):
        return
    if refused in (errno.EACCES, errno.EPERM):
        seen = "no memory that was written may be executed (mprotect: %s): oneDNN cannot make the code with which torch convolves and multiplies on the CPU"
        remedy = "a service of systemd: MemoryDenyWriteExecute=no; SELinux: see what it denies (ausearch -m avc, execmem); a container: its seccomp profile"
        raise StageFailed("system-calls-refused", seen % os.strerror(refused), remedy)


def signals_still_arrive() -> None:
    """Check that nothing has blocked since torch was imported what tells a rank to save and leave."""
    blocked = [
        name for name in _TELLING if getattr(signal, name) in signal.pthread_sigmask(signal.SIG_BLOCK, ()) - _BLOCKED_AT_START
    ]
    if blocked:
        seen = "since the rank began something in it has blocked %s, at the latest as the process group was formed: what saves a checkpoint before a preemption never runs"
        remedy = "see which library does it (strace -f -e trace=rt_sigprocmask), and unblock them once the group is there (signal.pthread_sigmask)"
        raise StageFailed("signals-blocked", seen % ", ".join(blocked), remedy)


def _signals_arrive() -> None:
    """Check what was inherited: a mask goes on to whatever is started (execve(2)), and no handler takes it away. That another signal than SIGCHLD is ignored is
    another thing: who sets a handler is told."""
    blocked = [name for name in _TELLING if getattr(signal, name) in _BLOCKED_AT_START]
    if blocked:
        seen = "the rank begins with %s blocked: what saves a checkpoint before a preemption, or awaits a child, never runs"
        raise StageFailed("signals-blocked", seen % ", ".join(blocked), _WHO_STARTED)
    if _CHILDREN_AT_START is signal.SIG_IGN:
        seen = "the rank begins with SIGCHLD ignored: the kernel keeps no exit status of its children (waitpid(2)), so that a command that failed counts as done"
        raise StageFailed("signals-blocked", seen, _WHO_STARTED)
    if callable(_CHILDREN_AT_START) and _is_deprived_by(_CHILDREN_AT_START):
        seen = "before training does anything SIGCHLD has a handler (%s) that awaits all children: whoever starts one does not learn how it ended (subprocess takes a failure for success)"
        raise StageFailed("signals-blocked", seen % getattr(_CHILDREN_AT_START, "__module__", ""), _WHO_STARTED)
    if _WRITES_AT_START is signal.SIG_DFL:
        seen = "before training does anything SIGPIPE has its default again, which Python takes from it as it starts: a rank that writes to a pipe or a connection whose other end is gone (a worker, a logger) ends without a word"
        raise StageFailed(
            "signals-blocked", seen, "look for signal.signal(SIGPIPE, SIG_DFL) in sitecustomize, .pth files and plug-ins"
        )
    if callable(_END_AT_START) and _survives(_END_AT_START):
        seen = "before training does anything SIGTERM has a handler (%s) that does not end the rank: what saves a checkpoint before a preemption is not told (Lightning sets no handler where one is)"
        raise StageFailed("signals-blocked", seen % getattr(_END_AT_START, "__module__", ""), _WHO_STARTED)


def _survives(handler: Any) -> bool:
    """Return whether a process with this handler goes on after SIGTERM."""

    def goes_on() -> bool:
        signal.signal(signal.SIGTERM, handler)
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.1)
        return True

    return _is_so_in_child(goes_on)


def _is_deprived_by(handler: Any) -> bool:
    """Return whether a process with this handler of SIGCHLD lacks the exit status of its child."""

    def lacks_status() -> bool:
        try:
            signal.signal(signal.SIGCHLD, handler)
            other = os.fork()
            if other == 0:
                os._exit(0)
            until = time.monotonic() + 1.0
            while time.monotonic() < until and os.path.exists("/proc/%d/stat" % other):
                if os.waitid(os.P_PID, other, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                    time.sleep(0.02)  # the handler has its turn
                    break
                time.sleep(0.001)
            os.waitpid(other, 0)
        except ChildProcessError:
            return True
        return False

    return _is_so_in_child(lacks_status)


def _is_so_in_child(question: Callable[[], bool]) -> bool:
    """Return the answer that a child gives; one that ends before says no."""
    child = os.fork()
    if child == 0:
        status = 0
        try:
            status = _YES if question() else 0
        finally:  # whatever a handler raises
            os._exit(status)
    return os.waitpid(child, 0)[1] == _YES << 8


def _nobody_stays() -> None:
    """Check that nobody keeps the process from ending: Python awaits every thread that is not a daemon, and a job that does not end holds its hosts."""
    staying = threads_that_stay()
    if staying:
        seen = "before training does anything %d thread(s) run that Python awaits before it ends: %s"
        raise StageFailed("rank-does-not-end", seen % (len(staying), ", ".join(staying[:3])), _WHO_STARTED)


def _nobody_spins() -> None:
    """Check that no thread computes, or waits for a CPU to compute, while nothing is asked of the process: the ranks need the CPU that it takes. OpenMP's own threads spin
    where somebody wants that (OMP_WAIT_POLICY), and are not there yet."""
    busiest = ("", 0.0)
    for _ in range(_SPIN_LOOKS):
        before, began = _times_of_threads(), time.monotonic()
        time.sleep(_SPIN_S)
        took = time.monotonic() - began
        shares = {}
        for name, (ran, waited) in _times_of_threads().items():
            ran_before, waited_before = before.get(name, (ran, waited))
            if ran - ran_before > _SPIN_RAN * took:
                shares[name] = (ran - ran_before + waited - waited_before) / took
        busiest = max(shares.items(), key=lambda one: one[1], default=busiest)
        if busiest[1] < _SPIN_SHARE:
            return
    seen = "before training does anything a thread of the process (%s) computes all the time: it takes a CPU that ranks and their workers need"
    raise StageFailed("threads-spin", seen % busiest[0], _WHO_STARTED)


def _times_of_threads() -> Dict[str, Tuple[float, float]]:
    """Return the seconds that each other thread of this process has run, and waited for a CPU."""
    found: Dict[str, Tuple[float, float]] = {}
    for thread in os.listdir("/proc/self/task"):
        times = times_of_thread("self/task/%s" % thread)
        if times is None or int(thread) == os.getpid():
            continue
        with contextlib.suppress(OSError), open("/proc/self/task/%s/comm" % thread) as name:
            found["%s, %s" % (thread, name.read().strip())] = times
    return found


def threads_that_stay() -> List[str]:
    """Return the names of those that Python awaits before it ends."""
    pools = [  # these are ended first; torch 2.0 compiles with a pool of processes
        *getattr(sys.modules.get("concurrent.futures.thread"), "_threads_queues", ()),
        *getattr(sys.modules.get("concurrent.futures.process"), "_threads_wakeups", ()),
    ]
    others = [one for one in threading.enumerate() if one is not threading.main_thread() and one not in pools]
    return [one.name for one in others if not one.daemon]


def _clocks_go_on() -> None:
    """None goes back, and all go as fast: timeouts, schedules of profilers and rates are differences of these."""
    began, last = _apart(), (0.0, 0.0)
    for look in range(_CLOCK_LOOKS):
        if look % 100 == 99:
            time.sleep(_CLOCK_S)
        now = time.monotonic(), time.perf_counter()
        back = max(before - one for one, before in zip(now, last))
        if back > 0:
            raise StageFailed("clock-jumps", "a clock that never goes back (CLOCK_MONOTONIC) went back by %.3g s" % back)
        last = now
    told = told_beyond_the_kernel()
    if abs(told) > _CLOCK_WRONG_S:
        seen = "the time that programs are told is %.0f s from the kernel's (something preloaded, such as libfaketime, gives another)"
        raise StageFailed("clock-skew", seen % told, _WHO_STARTED)
    off = _apart() - began
    if abs(off) > _CLOCK_OFF:
        seen = "two clocks that go on alike (CLOCK_MONOTONIC, CLOCK_BOOTTIME) came apart by %.2f s while they were looked at: one of them goes too fast or too slowly"
        raise StageFailed("clock-jumps", seen % abs(off), _WHO_STARTED)


def told_beyond_the_kernel() -> float:
    """Return by how much the time that this process is told is ahead of the kernel's."""
    return time.time() - _kernel_says()


def clock_has_jumped() -> float:
    """Return by how much this process's clock went on beside the one that nobody sets, since torch was imported."""
    return time.time() - time.monotonic() - _CLOCKS_AT_START


def clocks_came_apart() -> float:
    """Return by how much the clock that is timed by went on beside the kernel's other one, since torch was imported."""
    return _apart() - _APART_AT_START


def _kernel_says() -> float:
    """Return the time by what the kernel writes on a file that it makes in memory."""
    try:
        made = os.memfd_create("clock")
    except (OSError, AttributeError):  # a sandbox without
        return time.time()
    try:
        return os.fstat(made).st_mtime
    finally:
        os.close(made)


def _apart() -> float:
    """Return the least of several looks: between the two others may run."""
    try:
        return min(time.clock_gettime(time.CLOCK_BOOTTIME) - time.monotonic() for _ in range(9))
    except OSError:  # a sandbox that has no such clock
        return 0.0


_APART_AT_START = _apart()


def _freed_memory_stays() -> None:
    """Check that what is freed is kept for the next tensor: a page that was given back to the kernel is asked for again, and zeroed, at its next use. The smaller tensor
    has no mapping of its own unless somebody wants that; the larger one has none once the C library has seen a larger one freed, unless somebody set one of
    its bounds, which keeps it from moving any (mallopt(3)). With MALLOC_TRIM_THRESHOLD_=65536, as dask sets it, putting a batch of 4.8 MB together took 2.4 ms in place of
    0.35, and a step of a small model on the CPU 8 % longer."""
    torch.ones(4 * _MANY_NUMBERS)
    for count in (_FEW_NUMBERS, _MANY_NUMBERS):
        faults = min(_page_faults(count) for _ in range(3))
        if faults >= count * 4 // resource.getpagesize() // 2:
            named = [name for name in os.environ if name.startswith("MALLOC_") or name in ("GLIBC_TUNABLES", "LD_PRELOAD")]
            words = (count * 4 // 1000, faults, "".join("; %s=%s" % (name, os.environ[name]) for name in named))
            seen = "what is freed goes back to the kernel at once: each new tensor of %d kB costs %.0f page faults, where none are due%s"
            remedy = "unset MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_ and their like (mallopt(3)); look for what is preloaded (LD_PRELOAD); dask sets the second (distributed.nanny.pre-spawn-environ)"
            raise StageFailed("memory-returned-at-once", seen % words, remedy)


def _page_faults(count: int) -> float:
    """Return how many a new tensor of so many numbers costs."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(_TENSORS):
        torch.ones(count)
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / _TENSORS


_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_Setting = Tuple[str, Callable[[], Any], Any]


def _settings() -> Iterator[_Setting]:
    """Yield names, how each is asked, and what it is where nobody has set it."""
    yield "Python's collector of cycles (gc.disable): memory grows", gc.isenabled, True
    yield "the time-out of all sockets (socket.setdefaulttimeout)", socket.getdefaulttimeout, None
    yield "the stack of new threads (threading.stack_size)", lambda: 0 < threading.stack_size() < 1 << 18, False
    yield "Python's depth of calls (sys.setrecursionlimit)", lambda: sys.getrecursionlimit() >= 1000, True
    yield "the time between Python's threads (sys.setswitchinterval)", lambda: sys.getswitchinterval() <= 0.1, True
    yield "who is told of an error (sys.excepthook)", lambda: callable(sys.excepthook), True
    yield "timers that signal this process (setitimer)", lambda: [kind for kind in _TIMERS if signal.getitimer(kind)[0]], []
    yield "oneDNN (torch.backends.mkldnn.enabled): convolutions are slow without", _enabled("mkldnn"), True
    yield "cuDNN (torch.backends.cudnn.enabled): convolutions are slow without", _enabled("cudnn"), True
    yield (
        "how processes are started (multiprocessing.set_start_method)",
        _starts_processes_by,
        multiprocessing.get_all_start_methods()[0],
    )
    yield "autocast before anybody asks for it", _autocast, False
    yield "a mode that sees every function of torch (TorchFunctionMode)", _function_modes, 0
    yield "a mode that sees every operation of torch (TorchDispatchMode)", _dispatch_modes, 0
    yield "hooks on what autograd keeps (saved_tensors_hooks)", _saved_hooks, False


def _enabled(name: str) -> Callable[[], Any]:
    return lambda: getattr(getattr(torch.backends, name, None), "enabled", True)


def _starts_processes_by() -> Any:
    """Return what somebody chose, else the usual one, which comes first: each worker of a DataLoader that is spawned imports torch, and its data set must be pickled."""
    return multiprocessing.get_start_method(allow_none=True) or multiprocessing.get_all_start_methods()[0]


def _autocast() -> Any:
    if torch_has_reached(2, 4):  # the function for the CPU alone warns since then
        return any(torch.is_autocast_enabled(kind) for kind in ("cuda", "cpu"))
    return torch.is_autocast_enabled() or torch.is_autocast_cpu_enabled()


def _function_modes() -> Any:
    """Count them, without a default device that was named: it is told as such where it is another than the CPU."""
    named = getattr(getattr(torch.utils, "_device", None), "CURRENT_DEVICE", None) is not None
    return max(0, int(getattr(torch._C, "_len_torch_function_stack", int)()) - named)


def _dispatch_modes() -> Any:
    return int(getattr(torch._C, "_len_torch_dispatch_stack", int)())


def _saved_hooks() -> Any:
    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    return bool(top(False)) if top is not None else False


def _nothing_was_switched() -> None:
    found = []
    for name, ask, wanted in _settings():
        try:
            told = ask()
        except Exception:  # not a public part of every torch
            continue
        if told != wanted:
            found.append("%s: %s, not %s" % (name, told, wanted))
    if found:
        raise StageFailed("torch-setting-changed", "before anybody set it: %s" % "; ".join(found), _WHO_STARTED)
