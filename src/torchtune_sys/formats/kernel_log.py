"""Lines of the kernel's log, from /dev/kmsg, dmesg, journalctl -k, kern.log or a pasted part of one. Pure; nothing here raises.

Most lines of a log say nothing: a line is looked at (and recorded) only if it holds one of ``WORDS``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

from torchtune_sys.formats.kernel_message_table import ROWS, Shared
from torchtune_sys.model.patterns import pattern

_FURTHER = (
    "NVRM: ", "nvidia-nvswitch", "detected NVSwitch ", ": NVIDIA ", "DRM: VRAM", "nouveau 0", "Bus Error: severity=", "] UnsupReq", "oom-kill:", "sending SIG",
    "controller is down", "reset failure", "probe failure", "Remounting filesystem read-only", "BTRFS error", "BTRFS critical", "BTRFS: error", "BTRFS: critical",
    "and has been suspended", ": switching pool to ", "EDAC MC", "detected stall", "detected expedited stall", "[nvidia", "[mlx5", "[nfs", "[lustre",
    "available PCIe bandwidth, limited", "no error_detected callback", "device recovery failed", "event severity: ", "Error]:  Error ", "section_type: ",
    "Error]:   device_id: ", "aer_uncor_status: ", "admin cmd ", "Key was rejected by service", ": version magic '", "version of symbol module_layout",
    "over temperature", "GPU Recovery", "amdgpu_job_timedout", " timeout, signaled", "ceph: mds", "ceph: [", "ceph: mon", "ceph: osd", "): osd", "mlx5_core: probe of",
    "failed with error code", "probe with driver mlx5_core", "clocksource: Long readout", "clocksource: timekeeping watchdog", "PM: suspend e", "Hypervisor detected: ",
    "[amdgpu", "[ceph", "[ptlrpc", "[zfs", "[mlx4", "[sunrpc", "[rpcrdma", "[obdclass", "[lnet", "[ko2iblnd", "[lov]", "[osc]", "[mdc]", "[mgc]", "[mmfs", "[beegfs",
    "[wekafs", "[cifs", "[nvme", "[ib_", "[bnxt_", "[irdma", "[efa]", " in libcuda", " in libnccl", " in libtorch", " in libc10", " in libcudnn", " in libcublas",
    " in libnvidia", " in libmlx5", " in libibverbs", " in librccl", " in libcusparse", " in libcusolver", " in libcufft", " in libcurand", " in libnvrtc",
    " in libnvJitLink", " in libamdhip", " in libhsa-runtime", " in libMIOpen", " in libhip", " in libroc", " in libmkl", " in libiomp", " in libgomp", " in libtriton",
    " in libaotriton", ".cpython-3", "csum failed", "checksum error at logical", "multi-bit ECC", "scrub uncorrected error",
)  # fmt: skip
"""Words of lines that say more of a message beside them, or that are kept for who reads the log."""
WORDS = (*_FURTHER, *dict.fromkeys(word for word, _, _ in ROWS if not isinstance(word, Shared)))
_SHARED = (
    "rror", " in lib", "ceph", "ustre", "mlx", "rpc", "temperature", "imeout", "reset", "failure", "stall", "mdgpu", "respon", "nvidia", "NV", "BTRFS",
    "version ", "probe",
)  # fmt: skip
"""Parts that several of the words have, and that most logs lack: then none of these words need be sought."""
_IN_A_TRACE = "+0x"
"""What stands before a module's name, as in ``nfs_lookup+0x1a/0x90 [nfs]``: words that begin with a bracket are names of modules."""
LINES = 4_000
"""Lines that are kept for each word, the newest: a flood of one kind leaves room for the others."""
WIDTH = 1_000
"""Characters of a line that are kept (LOG_LINE_MAX of the kernel)."""
EARLIER = "An earlier boot logged: "
"""What stands before a line of the kernel's log files that the log of this boot does not hold."""
_SERIAL = "Board Serial Number"


def telling(text: str, messages: str | None = None) -> list[str]:
    """Return the lines that may say something, in order. ``messages``: what all of them say, where that is known with each message once: the
    words are sought there, which is shorter.

    >>> telling("a\\nNVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.\\nusb 1-1: new device\\n")
    ['NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.']
    """
    messages = text if messages is None else messages
    ends: set[int] = set()
    has_trace = _IN_A_TRACE in messages
    for part, words in _by_part().items():
        for word in words if part in messages else ():
            if word in messages and (word[0] != "[" or has_trace):
                ends.update(_ends(text, word))
    starts = ((max(text.rfind("\n", 0, end) + 1, end - WIDTH * 8), end) for end in sorted(ends))
    lines = (text[start:end] for start, end in starts if not _continues_another_s(text, start))
    return [_plain(line)[:WIDTH] for line in lines if _SERIAL not in line]


@functools.cache
def _by_part() -> dict[str, list[str]]:
    """Return the words by the first of the shared parts that each has, or ""."""
    found: dict[str, list[str]] = {}
    for word in WORDS:
        found.setdefault(next((part for part in _SHARED if part in word), ""), []).append(word)
    return found


def _ends(text: str, word: str) -> Iterator[int]:
    """Yield where the lines with a word end, the newest first."""
    at = text.rfind(word)
    for _ in range(LINES):
        if at < 0:
            return
        end = text.find("\n", at)
        yield len(text) if end < 0 else end
        at = text.rfind(word, 0, max(text.rfind("\n", 0, at), 0))


_STAMP = pattern(
    r"(?:<\d{1,3}>|[a-z]{3,8} *:[a-z]{3,7} *: )?(?:\[ *\+?\d{1,12}\.\d{6}(?:, *\d{1,9}| *[TC]\d{1,9})?\]|\[[A-Z][A-Za-z0-9: ]{6,28}\]|\d{4}-\d\d-\d\dT\S{8,22})"
    r"(?:\[ *[TC]\d{1,9}\])? "
)
_OF_A_DAEMON = pattern(r"(?:[^\s:\[]\S{0,80} +){1,4}kernel: (?:\[ *\d{1,12}\.\d{6}\] )?")
"""Time, host and ``kernel:``, as journald and syslog write lines of the kernel's."""


def message_start(line: str) -> int | None:
    """Return where the kernel's message begins; None where the line has no stamp that says so.

    >>> message_start("[    5.100000] NVRM: x"), message_start("Aug 26 14:08:07 host kernel: NVRM: x"), message_start("NVRM: x")
    (15, 29, None)
    """
    if line[:1] == "[":  # as in the ring buffer, and in most logs: no pattern is needed
        seconds, _, rest = line[1:24].lstrip(" ").partition(".")
        if seconds.isdecimal() and len(seconds) <= 12 and rest[:6].isdecimal() and rest[6:8] == "] ":
            return line.index("]") + 2
    found = _OF_A_DAEMON.match(line) or _STAMP.match(line)
    return found.end() if found else None


_CRASHES = ("segfault ", "general protection", "trap ", "bad frame", "unhandled ", "vsyscall ")
_CRASHED = pattern(rf"(?:traps: )?.{{1,16}}\[\d{{1,10}}\]:? (?:{'|'.join(_CRASHES)})|User process fault: ")
"""Before the name of a mapped file, and behind that of a task: both are the user's (arch/*/mm/fault.c, kernel/traps.c)."""


def is_crash(line: str, start: int) -> bool:
    """Return whether the message that begins at ``start`` tells of a program that crashed."""
    return any(words in line for words in (*_CRASHES, "User process fault: ")) and _CRASHED.match(line, start) is not None


NAMES = (
    "oom-kill:constraint=",
    "Memory cgroup stats for ",
    "Tasks in /",
    "Task in /",
    "fork rejected by pids controller in ",
    "process '",
    "nknown parameter '",
    "mount option ",
    "failed to resolve '",
)
"""What the kernel prints before names of control groups, programs, mount options and folders, which any user may choose (a user namespace lets
them mount): another message, too (mm/oom_kill.c, mm/memcontrol.c, kernel/cgroup/pids.c, fs/exec.c, fs/fs_parser.c, mm/shmem.c until 5.4,
fs/overlayfs). Names of tasks have 15 characters."""
_OF_A_CRASH = pattern(
    rf"(?:^|(?<=\] )|(?<=: ))(?:traps: )?(?!\[ *\d+\.\d{{6}}\])(?P<task>.{{1,16}}?)(?P<words>\[\d{{1,10}}\]:? (?:{'|'.join(_CRASHES)})(?:in \w{{1,40}} frame)?.*?)(?: in (?P<file>.*))?$",
    re.DOTALL,
)
_ORDINARY = pattern(r"(?:lib[A-Za-z0-9]{1,20}|_C)?[a-z0-9_.:/+-]{0,80}(?:\[[0-9a-f]{1,16}[,+][^\]]{1,40}\].{0,60})?")
"""A file's name as libraries and programs have it, and where it is mapped: no blank, no sign that a terminal acts upon, no error's name in large letters."""


def pieces(text: str) -> list[str]:
    """Return the lines of a text, of which a carriage return ends one, too; but not within a message in which the kernel repeats a name that some user
    chose.

    >>> pieces("50 %\\r60 %\\r\\nb"), pieces("x[7]: segfault at 0 in a\\r[ 5.1] NVRM: Xid")
    (['50 %', '60 %', 'b'], ['x[7]: segfault at 0 in a\\r[ 5.1] NVRM: Xid'])
    """
    lines = text.replace("\r\n", "\n").split("\n")
    return [piece for line in lines for piece in _pieces(line)] if "\r" in text else lines


def _pieces(line: str) -> list[str]:
    found = line.split("\r")
    begun = next((at for at, each in enumerate(found) if _repeats_a_name(each)), len(found)) if len(found) > 1 else 1
    return [*found[:begun], *filter(None, ["\r".join(found[begun:])])]


def _repeats_a_name(message: str) -> bool:
    start = message_start(message) if any(words in message for words in (*_CRASHES, *NAMES)) else None
    return is_crash(message, start or 0) or (start is not None and any(name in message for name in NAMES))


def without_names(text: str, line: str) -> str:
    """Return what the kernel itself words of a message: without the names that some user chose, unless they are as those of programs are. ``line`` is the
    whole line, with the stamp by which a message of the kernel's is known.

    >>> without_names("python3[7]: segfault at 0 ip 0 sp 0 error 4 in libcuda.so.535[7f+1000]", "")
    'python3[7]: segfault at 0 ip 0 sp 0 error 4 in libcuda.so.535[7f+1000]'
    >>> without_names("x y[7]: segfault at 0 ip 0 sp 0 error 4 in a NVRM: Xid 79[7f+1000]", "")
    '...[7]: segfault at 0 ip 0 sp 0 error 4 in ...'
    >>> without_names("Memory cgroup stats for /a NVRM: Xid 79: cache:0KB", "[    5.100000] Memory …")
    'Memory cgroup stats for ...'
    """
    if any(words in text for words in _CRASHES) and (found := _OF_A_CRASH.search(text)) is not None:
        task = found["task"] if _ONE_WORD.fullmatch(found["task"]) else "..."
        file = "" if found["file"] is None else f" in {found['file'] if _ORDINARY.fullmatch(found['file']) else '...'}"
        return f"{text[: found.start('task')]}{task}{found['words']}{file}"
    name = next((name for name in NAMES if name in text), "")
    head, _, rest = text.partition(name) if name else ("", "", "")
    if not name or _KEPT.fullmatch(rest) or _STAMPED.search(line[:_HEAD]) is None:
        return text
    return f"{head}{name}{rest.split(' ', 1)[0] if name.endswith('=') else '...'}"


_ONE_WORD = pattern(r"[\w.:/+-]{1,16}")
_KEPT = pattern(r"[\w./:=,+-]{0,200}'?(?: ignored)?")
_STAMPED = pattern(r"\[ {0,8}\d{1,12}\.\d{6}\] | kernel: ")


_LINES_OF_A_MESSAGE = 40


def _continues_another_s(text: str, start: int) -> bool:
    """Whether an indented line goes on with a message that is another's: some user chose a name with the end of a line in it. A driver's own begins
    each line with the driver's name."""
    if text[start : start + 1] not in (" ", "\t"):
        return False
    word = text[start : start + WIDTH].split(None, 1)[0]
    for _ in range(_LINES_OF_A_MESSAGE):
        end = start - 1
        if end < 0:
            return False
        start = text.rfind("\n", 0, end) + 1
        head = text[start : min(start + WIDTH, end)]
        if head[:1] not in (" ", "\t", ""):
            begun = message_start(head)
            return begun is not None and (is_crash(head, begun) or not head.startswith(word, begun))
    return False


def _plain(line: str) -> str:
    """Without the colours of dmesg --color and a carriage return; one within a message stands in a name that some user chose."""
    if "\x1b" in line or "\r" in line:
        parts = re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", line).rstrip("\r").split("\r")
        return "\r".join(parts[next((at for at, part in enumerate(parts) if message_start(part) is not None), -1) :])
    return line


_NAMES = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_MONTHS = {name: number for number, name in enumerate(_NAMES, 1)}
_HEAD = 120


def stamps(lines: Iterable[str]) -> Iterator[tuple[float | None, str]]:
    """Yield each line with its time: seconds since boot, or since 1970 where it shows the wall clock (syslog's, which has no year, since
    1972). A line that continues another (indented, no stamp of its own) has that one's time.

    >>> list(stamps(["[   12.500000] a", "Aug 26 14:08:07 host kernel: b", "   b goes on"]))
    [(12.5, '[   12.500000] a'), (83686087.0, 'Aug 26 14:08:07 host kernel: b'), (83686087.0, '   b goes on')]
    """
    clock = _Clock()
    for line in lines:
        yield clock.read(line[:_HEAD]), line


class _Clock:
    """Wall clock before the time since boot, where a line has both: a file holds several boots."""

    def __init__(self) -> None:
        self._last: float | None = None
        self._years = 0

    def read(self, head: str) -> float | None:
        plain = _plain_stamp(head)
        if plain is not None:
            self._last = plain
            return plain
        for look in (_iso, _ctime, _unix, self._syslog, _since_boot, self._delta):
            found = look(head)
            if found is not None:
                self._last = found
                return found
        return self._last if head[:1] in (" ", "\t") else None

    def _syslog(self, head: str) -> float | None:
        found = _search(r"(?<![A-Za-z])([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)(?!\S* \d{4}\])", head)
        if found is None or found[1] not in _MONTHS:
            return None
        time = _epoch(1972, _MONTHS[found[1]], *(int(number) for number in found.groups()[1:]))
        if time is None:
            return None
        if self._last is not None and time + self._years * _YEAR < self._last - _YEAR / 2:
            self._years += 1
        return time + self._years * _YEAR

    def _delta(self, head: str) -> float | None:
        """Return the time since the line before (dmesg -d, -e, -H): no time at all where no line before has one."""
        found = _search(r"\[ *\+(\d{1,9}\.\d{6})\]", head)
        return None if found is None or self._last is None else self._last + float(found[1])


_YEAR = 366 * 86_400.0


def _search(pattern: str, text: str) -> re.Match[str] | None:
    return re.search(pattern, text, re.ASCII)


def _plain_stamp(head: str) -> float | None:
    """Return the time since boot that stands at the very beginning, as in dmesg and our own recordings: most lines, and no pattern needed."""
    if head[:1] != "[":
        return None
    words = head[1 : head.find("]")].strip()
    return float(words) if len(words) < 20 and words.isascii() and words.replace(".", "", 1).isdigit() else None


def _since_boot(head: str) -> float | None:
    found = _search(r"\[ *(\d{1,12}\.\d{6})(?:, *\d+| *[TC]\d+)?\]", head)
    return float(found[1]) if found else None


def _iso(head: str) -> float | None:
    found = _search(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?(?:([+-])(\d\d):?(\d\d))?", head)
    if found is None:
        return None
    time = _epoch(*(int(number) for number in found.groups()[:6]))
    if time is None:
        return None
    zone = (int(found[9]) * 3600 + int(found[10]) * 60) if found[8] else 0
    return time + float(f"0.{found[7] or 0}") - (zone if found[8] != "-" else -zone)


def _unix(head: str) -> float | None:
    """journalctl -o short-unix."""
    found = _search(r"^(\d{10}\.\d{1,9}) \S+ kernel", head)
    return float(found[1]) if found else None


def _ctime(head: str) -> float | None:
    found = _search(r"[A-Z][a-z]{2} ([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d) (\d{4})", head)
    if found is None:
        return _fabric_manager(head)
    if found[1] not in _MONTHS:
        return None
    return _epoch(int(found[6]), _MONTHS[found[1]], *(int(found[index]) for index in range(2, 6)))


def _fabric_manager(head: str) -> float | None:
    """Return the stamp of the fabric manager's own log: ``[Feb 27 2025 15:10:02] [ERROR] …``."""
    found = _search(r"^\[([A-Z][a-z]{2}) +(\d{1,2}) (\d{4}) (\d\d):(\d\d):(\d\d)\]", head)
    if found is None or found[1] not in _MONTHS:
        return None
    return _epoch(int(found[3]), _MONTHS[found[1]], *(int(found[index]) for index in (2, 4, 5, 6)))


def _epoch(year: int, month: int, day: int, hour: int, minute: int, second: int) -> float | None:
    """Seconds since 1970, as if in UTC; None for what no calendar has.

    >>> _epoch(2025, 2, 23, 16, 24, 18), _epoch(2025, 13, 1, 0, 0, 0)
    (1740327858.0, None)
    """
    if not (1970 <= year <= 2200 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60):
        return None
    import calendar

    return float(calendar.timegm((year, month, day, hour, minute, second)))


def is_wall_clock(time: float) -> bool:
    """Return whether a time is one of a calendar rather than seconds since boot: no machine runs for two years on end, nearly."""
    return time > 60_000_000
