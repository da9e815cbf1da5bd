"""Turn lines of the kernel's log into events by kind (``kernel_message_table``). Pure; takes any text. A line that matches no row is ignored."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchtune_sys.formats.kernel_log import NAMES, is_crash, is_wall_clock, message_start, stamps, telling
from torchtune_sys.formats.kernel_message_table import PCI, ROWS
from torchtune_sys.model.facts.kernel import KernelEvent, KernelFacts
from torchtune_sys.model.values import Missing, Why

EVENTS = 2_000
TEXT = 200
CLOSE_S = 60.0
"""Messages of one kind on one subject belong together if no more time lies between them."""
_MODULES = (
    r"nvidia\w*|mlx[45]\w*|nfs\w*|sunrpc|rpcrdma|lustre|ptlrpc|obdclass|lnet|ko2iblnd|lov|osc|mdc|mgc|mmfs\w*|beegfs|wekafs\w*|cifs|ceph|libceph"
    r"|amdgpu|zfs|nvme\w*|ib_\w+|bnxt_\w+|irdma|efa"
)
"""Kernel modules of GPUs, network and storage: what a stack names of them is what hung or crashed."""
_NO_COUNT = 1_048_560
"""What an amdgpu without RAS "counts" in a block, and multiples of it: a register of all ones."""
IMAGES = r"(?:(?:sr|fd|loop|ram|zram|nbd|nullb|mtdblock)\d|mmcblk\d+(?:boot\d|rpmb))"
"""Devices whose errors speak against no disk of the host: drives without a medium, files that somebody mounted (images of containers), and the
flash chips of boards and the boot areas of eMMC, which hold firmware (Linux drivers/mtd/mtdblock.c, drivers/mmc/core/block.c)."""
_LED = re.compile(r" *(?:[^\s'\"`=,/]{1,80} +){0,3}[^\s'\"`=,/]{0,80}")
"""What a driver or a part of the kernel puts before a message: its name, a device, ``BUG:``. The kernel uses more words, or a quotation mark,
before it repeats what a user said."""


class _Line:
    """A line of the log, and which of it the kernel itself words."""

    def __init__(self, text: str) -> None:
        self.text = text
        start = message_start(text)
        self._start = start or 0
        self._is_stamped = start is not None
        self._end = min((place + len(name) for name in NAMES if (place := text.find(name)) >= 0), default=len(text))
        self.is_crash = is_crash(text, self._start)

    def search(self, pattern: str) -> re.Match[str] | None:
        """Return where a message matches that the kernel prints, and not a name that some user chose to look like one."""
        found = re.search(pattern, self.text)
        if found is None or found.start() >= self._end:
            return None
        is_first = not self._is_stamped or found.start() <= self._start
        return found if is_first or _LED.fullmatch(self.text, self._start, found.start()) else None


def read_log(text: str, source: str) -> KernelFacts | None:
    """Return what a log (or a longer text with parts of one) says; None where not one line is known.

    >>> facts = read_log("[ 5.100000] NVRM: Xid (PCI:0000:18:00): 79, pid=7, name=python3, GPU has fallen off the bus.", "report")
    >>> [(event.kind, event.subject, event.code, event.who, event.first_s) for event in facts.events]
    [('xid', '0000:18:00.0', 79, 'python3', 5.1)]
    """
    lines = telling(text)
    found = tuple(events(stamps(lines)))
    if not found:
        return None
    nothing = Missing(Why.NOT_RECORDED, source, "the log shows no times")
    times = [time for event in found for time in (event.first_s, event.last_s) if time is not None]
    wall = bool(times) and is_wall_clock(max(times))
    return KernelFacts(
        events=found,
        source=source,
        from_s=min(times) if times else nothing,
        now_s=max(times) if times else nothing,
        booted=0.0 if wall and max(times) > 1e9 else nothing,
        whole=Missing(Why.NOT_RECORDED, source, "a report may hold a part of the log"),
    )


def events(lines: Iterable[tuple[float | None, str]]) -> Iterator[KernelEvent]:
    """Return the events in the order in which they began, at most ``EVENTS``; what comes too often is counted with its like."""
    book = _EventCollector()
    for time, line in lines:
        book.read(time, line)
    killed = any(event.kind == "oom-kill" for event in book.events)
    return (event for event in book.events if event.kind != "oom-report" or not killed)


class _EventCollector:
    def __init__(self) -> None:
        self.events: list[KernelEvent] = []
        self._latest: dict[tuple[str, str, int], int] = {}
        self._gpu = ""  # the address in NVRM's last "The NVIDIA GPU …", which its next lines speak of
        self._cgroup = ""
        self._record: dict[str, str] = {}  # what the firmware's error record, whose lines follow each other, has said so far

    def read(self, time: float | None, line: str) -> None:
        own = _Line(line)
        for word, kind, pattern in ROWS:
            if word in line and (kind == "crash" or not own.is_crash):
                found = own.search(pattern)
                if found is not None:
                    self._add(kind, found, time, line)
                    return
        if not own.is_crash:
            self._context(time, own)

    def _context(self, time: float | None, own: _Line) -> None:
        """Lines that say more of the message before or after them."""
        line = own.text
        if "NVRM: The NVIDIA" in line:
            found = own.search(rf"NVRM: The NVIDIA .*?GPU {PCI}")
            self._gpu = address(found["subject"]) if found else ""
        elif "NVRM: " in line and (found := own.search(rf"NVRM: .*?BAR\d is \d+M @ \S+ \(PCI:{PCI}\)")):
            self._amend("gpu-bar", subject=address(found["subject"]))
        elif "NVRM: " in line and (found := own.search(r"NVRM: .*kernel module has the version (\S+?)[.,]?(?:\s|$)")):
            self._amend("api-mismatch", who=found[1][:20])
        elif "oom-kill:" in line and (found := own.search(r"oom-kill:constraint=(\w{1,40})(?:.*?oom_memcg=([^,]{1,200}))?")):
            self._cgroup = f"{found[1]} {found[2] or ''}".strip()
        elif "] UnsupReq" in line:
            self._amend("aer-uncorrected", text="UnsupReq")
        elif "[Hardware Error]:" in line:
            self._firmware(time, own)
        elif "+0x" in line and (found := own.search(rf"\+0x[0-9a-f]+/0x[0-9a-f]+ \[({_MODULES})\]")):
            self._amend("lockup", "hung-task", "oops", "panic", text=f"in the module {found[1]}")

    def _firmware(self, time: float | None, own: _Line) -> None:
        """Read a line of a record of APEI, which names severity, kind and device in this order (Linux drivers/firmware/efi/cper.c, ghes.c, bert.c)."""
        found = own.search(
            r"\[Hardware Error\]: +(event severity|section_type|device_id|aer_uncor_status|Error \d{1,4}, type): (\S.{0,60})"
        )
        if found is None:
            return
        name, value = found[1], found[2].strip()
        if name == "event severity":
            self._record = {}
        severity = self._record.get("severity", "")
        lost = "Fatal" if severity in ("fatal", "panic") else "Non-Fatal"
        if name == "aer_uncor_status":
            self._amend("aer-uncorrected", text="UnsupReq" if value.startswith("0x00100000") else "")
        elif name == "section_type":
            self._record["section"] = value
            if re.fullmatch(r"memory error|.* processor error", value) and severity in ("fatal", "recoverable"):
                self._add_event("memory-uncorrected", f"{severity} {value}, reported by the firmware", time)
        elif name == "device_id":
            if self._record.get("section") == "PCIe error" and severity in ("fatal", "recoverable", "corrected"):
                kind = "aer-corrected" if severity == "corrected" else "aer-uncorrected"
                who = "reported by the firmware" if severity == "corrected" else lost
                self._add_event(kind, f"{severity} PCIe error, reported by the firmware", time, address(value), who)
        else:
            self._record["severity"] = value

    def _add_event(self, kind: str, text: str, time: float | None, subject: str = "", who: str = "") -> None:
        self._count(KernelEvent(kind=kind, subject=subject, text=text, who=who, first_s=time, last_s=time))

    def _amend(self, *kinds: str, subject: str = "", who: str = "", text: str = "") -> None:
        last = self.events[-1] if self.events else None
        if last is None or last.kind not in kinds:
            return
        changed: dict[str, object] = {name: new for name, new in (("subject", subject), ("who", who)) if new}
        if text and text not in last.text:
            changed["text"] = f"{last.text}, {text}"[: TEXT + 60]
        self.events[-1] = _replaced(last, changed)

    def _add(self, kind: str, found: re.Match[str], time: float | None, line: str) -> None:
        group = found.groupdict()
        subject = group.get("subject") or group.get("other") or ""
        if PCI in found.re.pattern:
            subject = address(subject)
        if kind in ("gpu-lost", "gpu-legacy", "gpu-needs-proprietary", "gpu-needs-open", "gpu-unsupported") and not subject:
            subject = self._gpu
        if kind in ("disk-io", "disk-medium", "fs-error", "fs-read-only") and re.match(IMAGES, subject):
            return
        if kind == "gpu-init" and "rm_init_adapter" in line and (kind, subject, 0) in self._latest:
            return  # the caller's line about a failure that was told of already
        if kind == "amdgpu-ue" and "code" in group and int(group["code"]) % _NO_COUNT == 0:
            return
        if kind == "pcie-narrow" and int(group["code"]) >= int(group["most"]):
            return  # slower, not narrower: so is every card in an older slot, and each GPU at rest
        who = (group.get("who") or "").strip()
        if kind == "sxid":
            who = who.capitalize()
        text = line[found.start() : found.start() + TEXT].strip().removeprefix("NVRM: ").lstrip()
        if kind == "gpu-legacy":
            text = text.partition(". Please")[0]
        if kind == "oom-kill":
            text, self._cgroup = f"{text.partition(' total-vm')[0]} {self._cgroup}".strip()[:TEXT], ""
        code = int(group.get("code") or 0)
        if kind == "xid" and code == 45 and (before := re.search(r"caused by previous Xid (\d{1,6})\b", line)):
            code = int(before[1])  # the channels of that error's programs, taken down one by one
        self._count(KernelEvent(kind=kind, subject=subject, code=code, text=text, who=who, first_s=time, last_s=time))

    def _count(self, new: KernelEvent) -> None:
        key = (new.kind, new.subject, 0 if new.kind in ("lockup", "hung-task") else new.code)
        at = self._latest.get(key)
        if at is not None and (len(self.events) >= EVENTS or _close(self.events[at], new)):
            old = self.events[at]
            who = old.who if new.who in old.who.split(", ") or len(old.who) > 100 else f"{old.who}, {new.who}".strip(", ")
            last = new.last_s if old.last_s is None or new.last_s is None else max(old.last_s, new.last_s)
            latest: dict[str, object] = {"text": new.text} if new.code == 154 else {}
            if new.kind == "hung-task":
                latest["code"] = max(old.code, new.code)
            self.events[at] = _replaced(old, {"count": old.count + 1, "last_s": last, "who": who, **latest})
        elif len(self.events) < EVENTS:
            self._latest[key] = len(self.events)
            self.events.append(new)


def _close(old: KernelEvent, new: KernelEvent) -> bool:
    if new.kind in ("boot", "driver-load"):
        return False
    return old.last_s is None or new.first_s is None or new.first_s - old.last_s <= CLOSE_S


def _replaced(event: KernelEvent, changed: dict[str, object]) -> KernelEvent:
    import msgspec

    return msgspec.structs.replace(event, **changed)


def address(text: str) -> str:
    """Return a PCI address as sysfs writes it.

    >>> address("0000:9b:00"), address("00000000:9B:00.0"), address("9b:00.0"), address("0000:03:00.1")
    ('0000:9b:00.0', '0000:9b:00.0', '0000:9b:00.0', '0000:03:00.1')
    """
    head, dot, function = text.lower().rpartition(".")
    parts = (head if dot else text.lower()).split(":")
    if len(parts) == 2:
        parts.insert(0, "0000")
    if len(parts) != 3:
        return text.lower()
    return f"{parts[0][-4:]:0>4}:{parts[1]:0>2}:{parts[2]}.{function if dot else 0}"
