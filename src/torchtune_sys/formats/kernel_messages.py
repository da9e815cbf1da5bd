"""What lines of the kernel's log mean: events by kind. Pure; takes any text.

Formats are those of the sources named beside each group; a line that matches none says nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from torchtune_sys.formats.kernel_log import is_wall_clock, stamps, telling
from torchtune_sys.model.facts.kernel import KernelEvent, KernelFacts
from torchtune_sys.model.values import Missing, Why

EVENTS = 2_000
TEXT = 200
CLOSE_S = 60.0
"""Messages of one kind on one subject belong together if no more time lies between them."""
_PCI = r"(?P<subject>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{1,4}:[0-9a-fA-F]{2}(?:[.:][0-9a-fA-F]{1,2})?(?:\.[0-7])?)"

_Row = tuple[str, str, str]
_ROWS: tuple[_Row, ...] = (
    # NVIDIA/open-gpu-kernel-modules: src/nvidia/src/kernel/gpu/.../nvErrorLog, arch/nvalloc/unix/src/osinit.c, kernel-open/nvidia/nv.c
    ("NVRM: Xid", "xid", rf"NVRM: Xid \((?:PCI:)?{_PCI}[^)]*\)[^:]{{0,40}}: (?P<code>\d{{1,6}})\b(?:.*?\bname=(?P<who>[^,<]{{1,40}}))?"),
    ("fallen off the bus", "gpu-lost", rf"NVRM: .*?(?:GPU |PCI:){_PCI}.*fallen off the bus"),
    ("fallen off the bus", "gpu-lost", r"NVRM: .*fallen off the bus"),
    ("device inaccessible", "gpu-lost", rf"nvidia {_PCI}: Unable to change power state from D3\w+ to D0, device inaccessible"),
    ("RmInitAdapter failed", "gpu-init", rf"NVRM: (?:GPU {_PCI}: )?RmInitAdapter failed"),
    ("API mismatch", "api-mismatch", r"NVRM: API mismatch(?:.*module has the version (?P<who>[\w.]{1,20}\w))?"),
    ("Legacy", "gpu-legacy", r"NVRM: .*supported through the NVIDIA (?P<who>[\w.]{1,20}) Legacy"),
    ("not supported by open", "gpu-needs-proprietary", r"NVRM: .*not supported by open"),
    ("requires use of the", "gpu-needs-open", r"NVRM: .*requires use of the"),
    ("system is not supported by the", "gpu-unsupported", r"NVRM: (?:installed )?in this system is not supported by the"),
    ("I/O region assigned", "gpu-bar", r"NVRM: This PCI I/O region assigned to your NVIDIA device is invalid"),
    ("already bound to", "gpu-bound", rf"NVRM: GPU {_PCI} is already bound to (?P<who>\w+)"),
    ("nouveau ", "gpu-bound", rf"(?P<who>nouveau) {_PCI}: (?:NVIDIA [A-Z]{{1,3}}\d|DRM: VRAM)"),
    ("probe routine failed", "gpu-probe-failed", r"NVRM: The NVIDIA probe routine failed for (?P<code>\d{1,4})\b"),
    ("probe routine was", "gpu-not-probed", r"NVRM: The NVIDIA probe routine was not called for (?P<code>\d{1,4})\b"),
    ("loading NVIDIA UNIX", "driver-load", r"NVRM: loading NVIDIA UNIX"),
    ("gsp_", "gsp-firmware", rf"nvidia {_PCI}: Direct firmware load for (?P<who>\S*gsp_\S*) failed with error -2"),
    ("RmFetchGspRmImages", "gsp-firmware", r"NVRM: .*RmFetchGspRmImages: No firmware image found"),
    ("SXid", "sxid", rf"nvidia-nvswitch\d+: SXid \(PCI:{_PCI}\): (?P<code>\d{{1,6}})\b(?:, (?P<who>Fatal|Non-fatal))?"),
    # NVIDIA's fabric manager, of what the switches' driver told it
    ("detected NVSwitch", "sxid", rf"detected NVSwitch (?P<who>fatal|non-fatal) error (?P<code>\d{{1,6}}) on fid \d{{1,3}} on NVSwitch pci bus id {_PCI}"),
    # Linux: kernel/module/signing.c, security/lockdown; modprobe's own words
    ("unsigned module", "module-refused", r"Lockdown: (?P<who>\S+): unsigned module loading is restricted|Loading of unsigned module is rejected"),
    ("unavailable key", "module-refused", r"Loading of module with unavailable key is rejected"),
    ("Key was rejected", "module-refused", r"could not insert '(?P<who>[\w-]+)': Key was rejected by service"),
    # Linux: drivers/iommu/amd/iommu.c, drivers/iommu/intel/dmar.c
    ("IO_PAGE_FAULT", "iommu-fault", rf"nvidia {_PCI}: AMD-Vi: Event logged \[IO_PAGE_FAULT"),
    ("IO_PAGE_FAULT", "iommu-fault", rf"\[?IO_PAGE_FAULT device=(?:[0-9a-f]{{4}}:)?{_PCI}"),
    ("DMAR: [", "iommu-fault", rf"DMAR: \[DMA (?:Read|Write)[^\]]*\] Request device \[(?:[0-9a-f]{{4}}:)?{_PCI}\]"),
    # Linux: drivers/pci/pcie/aer.c, dpc.c, drivers/pci/hotplug/pciehp_ctrl.c
    ("Bus Error: severity=Uncorrect", "aer-uncorrected", rf"{_PCI}: (?:AER: )?\w+ Bus Error: severity=Uncorrect\w+ \((?P<who>[\w-]+)\), type=[\w ]+"),
    ("Bus Error: severity=Correct", "aer-corrected", rf"{_PCI}: (?:AER: )?\w+ Bus Error: severity=Correct\w+, type=(?P<who>[\w ]+)"),
    ("DPC: containment", "pcie-contained", rf"{_PCI}: DPC: containment event"),
    ("pciehp: Slot(", "slot-down", rf"{_PCI}: pciehp: Slot\((?P<who>[^)]{{1,40}})\): Link Down"),
    # Linux: drivers/pci/pci.c (__pcie_print_link_status), printed of every device when it is found, and by drivers of network cards
    ("bandwidth, limited", "pcie-narrow", rf"[\w-]{{2,20}} {_PCI}: [\d.]{{3,12}} Gb/s available PCIe bandwidth, limited by [\d.]{{1,5}} GT/s (?:PCIe )?x(?P<code>\d{{1,2}}) link at \S{{1,20}} \(capable of .{{1,40}} x(?P<most>\d{{1,2}}) link\)"),
    # Linux: mm/oom_kill.c
    ("ut of memory: Kill", "oom-kill", r"(?P<subject>Memory cgroup out of memory|Out of memory): Kill(?:ed)? process \d+,? \(?(?P<who>[^),]{1,40})"),
    ("slurmstepd: error: Detected", "oom-kill", r"slurmstepd: error: (?P<subject>Detected) \d{1,9} oom[-_]kill event\S{0,3} in (?P<who>(?:StepId=|step )[\w.+]{1,30}\w)"),
    # Linux: drivers/net/ethernet/mellanox/mlx5/core: health.c, events.c, en_main.c
    ("health compromised", "mlx5-fault", rf"mlx5_core {_PCI}: .*?device's health compromised"),
    ("Fatal error ", "mlx5-fault", rf"mlx5_core {_PCI}: .*?Fatal error \d+ detected"),
    (": synd 0x", "mlx5-fault", rf"mlx5_core {_PCI}: .*?synd 0x0*[1-9a-f][0-9a-f]*: "),
    # Linux: drivers/infiniband/hw/efa/efa_com.c
    ("any MSI-X interrupt for admin cmd", "efa-fault", r"infiniband (?P<subject>[\w-]{1,32}): The device sent a completion but the driver didn't receive any MSI-X"),
    ("any completion for admin cmd", "efa-fault", r"infiniband (?P<subject>[\w-]{1,32}): The device didn't send any completion"),
    ("(polling) timeout", "efa-fault", r"infiniband (?P<subject>(?:efa_|rdmap)\w{1,24}): Wait for completion \(polling\) timeout"),
    ("Admin queue is closed", "efa-fault", r"infiniband (?P<subject>(?:efa_|rdmap)\w{1,24}): Admin queue is closed"),
    ("Device isn't ready", "efa-fault", r"(?:infiniband|efa) (?P<subject>\S{1,32}): Device isn't ready, (?:abort com init|can't reset)"),
    ("Cable error", "module-fault", rf"mlx5_core {_PCI}: Port module event\[error\]: module \d+, Cable error, (?P<who>.{{1,80}})"),
    ("High temperature on", "nic-hot", rf"mlx5_core {_PCI}: .*High temperature on sensors"),
    (": Link down", "link-down", r"mlx5_core \S+ (?P<subject>[\w.-]{1,16}): Link down"),
    ("Link is Down", "link-down", r"(?P<subject>[\w.-]{1,16}): (?:NIC )?Link is Down"),
    # Linux: drivers/nvme/host/core.c, pci.c
    ("will reset", "nvme-reset", r"nvme (?P<subject>nvme\d+): controller is down; will reset"),
    ("reset controller", "nvme-reset", r"nvme (?P<subject>nvme\d+): (?:frozen state error detected|.*timeout), reset controller"),
    (" failure", "nvme-dead", r"nvme (?P<subject>nvme\d+): (?:Removing after probe failure|Disabling device after reset failure)"),
    # Linux: block/blk-core.c, fs/buffer.c, fs/ext4/super.c, fs/xfs, fs/btrfs
    ("critical medium error", "disk-medium", r"critical medium error, dev (?P<subject>[\w-]+)"),
    ("I/O error", "disk-io", r"(?:^|[ :])I/O error, dev (?P<subject>[\w-]+), sector|Buffer I/O error on dev(?:ice)? (?P<other>[\w-]+)"),
    ("I/O Error", "disk-medium", r"(?P<subject>nvme\d+n\d+): .*I/O Error \(sct 0x2 "),
    ("EXT4-fs error", "fs-error", r"EXT4-fs error \(device (?P<subject>[^):]{1,60})"),
    ("Remounting filesystem", "fs-read-only", r"EXT4-fs \((?P<subject>[^)]{1,60})\): Remounting filesystem read-only"),
    ("orruption", "fs-error", r"XFS \((?P<subject>[^)]{1,60})\): .*[Cc]orruption"),
    ("Internal error", "fs-error", r"XFS \((?P<subject>[^)]{1,60})\): Internal error"),
    ("hutting down filesystem", "fs-error", r"XFS \((?P<subject>[^)]{1,60})\): .*[Ss]hutting down filesystem"),
    ("log I/O error", "fs-error", r"XFS \((?P<subject>[^)]{1,60})\): log I/O error"),
    ("forced readonly", "fs-read-only", r"BTRFS \w+ \(device (?P<subject>[\w-]{1,60})[^)]*\): .*forced readonly"),
    ("BTRFS ", "fs-error", r"BTRFS (?:critical|error) \(device (?P<subject>[\w-]{1,60})[^)]*\): .*(?:corrupt|parent transid verify failed|csum failed|IO failure)"),
    # Linux: net/sunrpc (clnt.c), Lustre: ptlrpc/import.c
    ("nfs: server ", "server-lost", r"nfs: server (?P<subject>\S{1,200}) not responding"),
    ("nfs: server ", "server-back", r"nfs: server (?P<subject>\S{1,200}) OK"),
    ("Lustre: ", "server-lost", r"Connection to (?P<subject>\S{1,200}) \(at [^)]*\) was lost"),
    ("Lustre: ", "server-back", r"Connection restored to (?P<subject>\S{1,200}) "),
    # Linux: arch/x86/kernel/cpu/mce, drivers/edac/edac_mc.c, mm/memory-failure.c
    ("Machine Check", "machine-check", r"(?:CPU (?P<subject>\d+): )?Machine Check(?: Exception)?: [0-9a-f]+ Bank (?P<code>\d+)"),
    (" CE ", "memory-corrected", r"EDAC (?P<subject>MC\d+): (?P<code>\d{1,9}) CE .*? on (?P<who>\S{1,60})"),
    (" UE ", "memory-uncorrected", r"EDAC (?P<subject>MC\d+): (?P<code>\d{1,9}) UE .*? on (?P<who>\S{1,60})"),
    ("Memory failure: 0x", "memory-uncorrected", r"Memory failure: 0x[0-9a-f]+: (?:Sending SIGBUS|recovery action|[\w ]*hardware memory corruption)"),
    # Linux: kernel/watchdog.c, hung_task.c, rcu/tree_stall.h
    ("soft lockup", "lockup", r"soft lockup - CPU#\d+ stuck for (?P<code>\d{1,6})s! \[(?P<who>[^\]]{1,40}):"),
    ("hard LOCKUP", "lockup", r"hard LOCKUP on cpu"),
    ("blocked for more than", "hung-task", r"INFO: task (?P<who>\S{1,40}):\d+ blocked for more than (?P<code>\d{1,6}) seconds"),
    ("stall", "lockup", r"rcu: INFO: \w+ (?:self-)?detected (?:expedited )?stall"),
    ("above threshold, cpu clock", "cpu-hot", r"CPU\d+: (?P<subject>Core|Package) temperature(?:/speed)? above threshold, cpu clock"),
    # Linux: arch/x86/mm/fault.c, traps.c
    (": segfault at ", "crash", r"(?P<subject>[^\s\[]{1,40})\[\d+\]: segfault at .* in (?P<who>lib(?:cuda|nccl|torch|c10|cudnn|cublas|nvidia|mlx5|ibverbs)[\w.+-]*)"),
    ("general protection", "crash", r"(?P<subject>[^\s\[]{1,40})\[\d+\] general protection.* in (?P<who>lib(?:cuda|nccl|torch|c10|cudnn|cublas|nvidia|mlx5|ibverbs)[\w.+-]*)"),
    ("Linux version ", "boot", r"Linux version \d"),
)  # fmt: skip
_NOT_DISKS = ("sr", "fd", "loop", "ram", "zram", "nbd")


def read_log(text: str, source: str) -> KernelFacts | None:
    """What a log (or a longer text with parts of one) says; None where not one line is known.

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
    """Events in the order in which they began, at most ``EVENTS``; what comes too often is counted with its like."""
    book = _Book()
    for time, line in lines:
        book.read(time, line)
    return iter(book.events)


class _Book:
    def __init__(self) -> None:
        self.events: list[KernelEvent] = []
        self._latest: dict[tuple[str, str, int], int] = {}
        self._gpu = ""  # the address in NVRM's last "The NVIDIA GPU …", which its next lines speak of
        self._cgroup = ""
        self._record: dict[str, str] = {}  # what the firmware's error record, whose lines follow each other, has said so far

    def read(self, time: float | None, line: str) -> None:
        for word, kind, pattern in _ROWS:
            if word in line:
                found = re.search(pattern, line)
                if found is not None:
                    self._add(kind, found, time, line)
                    return
        self._context(time, line)

    def _context(self, time: float | None, line: str) -> None:
        """Lines that say more of the message before or after them."""
        if "NVRM: The NVIDIA" in line:
            found = re.search(rf"NVRM: The NVIDIA .*?GPU {_PCI}", line)
            self._gpu = address(found["subject"]) if found else ""
        elif "NVRM: " in line and (found := re.search(rf"BAR\d is \d+M @ \S+ \(PCI:{_PCI}\)", line)):
            self._amend("gpu-bar", subject=address(found["subject"]))
        elif found := re.search(r"NVRM: .*kernel module has the version (\S+?)[.,]?(?:\s|$)", line):
            self._amend("api-mismatch", who=found[1][:20])
        elif found := re.search(r"oom-kill:constraint=(\w{1,40})(?:.*?oom_memcg=([^,]{1,200}))?", line):
            self._cgroup = f"{found[1]} {found[2] or ''}".strip()
        elif "] UnsupReq" in line:
            self._amend("aer-uncorrected", text="UnsupReq")
        elif "[Hardware Error]:" in line:
            self._firmware(time, line)
        elif "[" in line and (found := re.search(r"\+0x[0-9a-f]+/0x[0-9a-f]+ \[(nvidia\w*|mlx5\w*|nfs\w*|lustre)\]", line)):
            self._amend("lockup", "hung-task", text=f"in the module {found[1]}")

    def _firmware(self, time: float | None, line: str) -> None:
        """A line of a record of APEI, which names severity, kind and device in this order (Linux drivers/firmware/efi/cper.c, ghes.c, bert.c)."""
        found = re.search(
            r"\[Hardware Error\]: +(event severity|section_type|device_id|aer_uncor_status|Error \d{1,4}, type): (\S.{0,60})",
            line,
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
            if value == "memory error" and severity in ("fatal", "recoverable"):
                self._told("memory-uncorrected", f"{severity} memory error, told by the firmware", time)
        elif name == "device_id":
            if self._record.get("section") == "PCIe error" and severity in ("fatal", "recoverable", "corrected"):
                kind = "aer-corrected" if severity == "corrected" else "aer-uncorrected"
                who = "told by the firmware" if severity == "corrected" else lost
                self._told(kind, f"{severity} PCIe error, told by the firmware", time, address(value), who)
        else:
            self._record["severity"] = value

    def _told(self, kind: str, text: str, time: float | None, subject: str = "", who: str = "") -> None:
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
        if _PCI in found.re.pattern:
            subject = address(subject)
        if kind in ("gpu-lost", "gpu-legacy", "gpu-needs-proprietary", "gpu-needs-open", "gpu-unsupported") and not subject:
            subject = self._gpu
        if kind == "disk-io" and subject.startswith(_NOT_DISKS):
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
            latest = {"text": new.text} if new.code == 154 else {}
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
    """A PCI address as sysfs writes it.

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
