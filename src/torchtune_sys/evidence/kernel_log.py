"""A kernel log in pasted text: dmesg, journalctl -k, kern.log or syslog, or lines of one within a longer report."""

from __future__ import annotations

import re

from torchtune_sys.evidence.partial import partly
from torchtune_sys.formats import hypervisors
from torchtune_sys.formats.kernel_log import EARLIER
from torchtune_sys.formats.kernel_messages import read_log
from torchtune_sys.model.facts.kernel import KernelEvent, KernelFacts
from torchtune_sys.model.facts.system import SystemFacts
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing, Why, known

_NAME = "report"
_LINE = pattern(
    r"^[ \t>]{0,8}(?:<\d+>)?(?:\[ *\+?\d{1,9}\.\d{6}\]|\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \d{4}\]|(?=.{0,50}\d\d:\d\d:\d\d).{8,60} kernel: )"
    r"|^[ \t>]{0,8}(?:amdgpu [0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]: |\[drm(?::\w+ \[\w+\])?\] |amdgpu: )",
    re.MULTILINE,
)
"""A line with a time, or one of amdgpu and its frame without (dmesg -t, or cut off by who pasted it)."""
_SAMPLE = 1 << 16
_ENOUGH = 10
"""Lines in the form of a kernel log that make a log of a text in which no message is known; fewer do if they are most of it."""


def kernel_facts(text: str) -> KernelFacts | None:
    """Return what the kernel's lines in the text say; None where there are none.

    >>> kernel_facts("PyTorch version: 2.5.1") is None
    True
    >>> kernel_facts("[   12.345678] NVRM: Xid (PCI:0000:18:00): 79, GPU has fallen off the bus.").events[0].code
    79
    """
    text = _plain(text)
    found = read_log(text, _NAME)
    if found is not None and not isinstance(found.events, Missing) and any(map(_telling, found.events)):
        return found
    if not _looks_like_one(text[:_SAMPLE]):
        return None
    nothing = Missing(Why.NOT_RECORDED, _NAME, "no line with a time was needed")
    return KernelFacts(events=(), source=_NAME, from_s=nothing, now_s=nothing, booted=nothing, whole=nothing)


def hypervisor(found: KernelFacts) -> str:
    """Return the hypervisor that the log names; ``""`` where it names none, and of WSL, which the kernel's name tells.

    >>> hypervisor(kernel_facts("[    0.000000] Hypervisor detected: KVM\\n[    0.01] x\\n"))
    'kvm'
    """
    events = known(found.events, ())
    named = next((event.who for event in events if event.kind == "hypervisor"), "")
    if not named or any(event.kind == "boot" and "microsoft" in event.text for event in events):
        return ""
    return hypervisors.meant(named)


_DETECTED = pattern(
    r"^[^\n]{0,80}\bsystemd-detect-virt[ \t]*\n(none|kvm|qemu|amazon|vmware|microsoft|xen|google)[ \t]*$", re.MULTILINE
)
"""Words of systemd-detect-virt(1) for a virtual machine."""


def detected(text: str) -> SystemFacts | None:
    r"""Return what systemd-detect-virt says of the machine.

    >>> detected("$ systemd-detect-virt\nnone\n").hypervisor, detected("$ systemd-detect-virt\nvmware\n").hypervisor
    ('', 'vmware')
    """
    asked = _DETECTED.search(text)
    if asked is None:
        return None
    word = asked[1]
    return partly(
        SystemFacts, hypervisor="" if word == "none" else word if word in ("amazon", "google") else hypervisors.meant(word)
    )


_RECORD = pattern(r"^\d{1,5},\d{1,18},(\d{1,12})(\d{6}),[^;\n]{1,80};", re.MULTILINE)
"""/dev/kmsg (Documentation/ABI/testing/dev-kmsg): priority and facility, number, microseconds, flags, then the message."""


_EARLIER = pattern(rf"^{EARLIER}[^\n]*\n?", re.MULTILINE)


def _plain(text: str) -> str:
    """Return what is told of this boot; records of /dev/kmsg as dmesg prints them.

    >>> _plain("4,1007,5678901,-;NVRM: loading\\n SUBSYSTEM=pci\\n")
    '[5.678901] NVRM: loading\\n SUBSYSTEM=pci\\n'
    """
    text = _EARLIER.sub("", text) if EARLIER in text else text
    return _RECORD.sub(r"[\1.\2] ", text)


def _looks_like_one(text: str) -> bool:
    """Whether the text has the form of a kernel log, whatever its lines say.

    >>> _looks_like_one("$ dmesg | grep -i nvidia\\n[    9.104242] nvidia-nvlink: Nvlink Core is being initialized\\n[    9.2] cut"), _looks_like_one("x")
    (True, False)
    """
    found = len(_LINE.findall(text))
    return found >= _ENOUGH or (found > 0 and 3 * found >= sum(bool(line.strip()) for line in text.split("\n")))


def _telling(event: KernelEvent) -> bool:
    """Tell whether a line tells more than others: the kernel's version is told by other reports, too: there without the time that a log has. The fabric manager's log repeats what
    the kernel's says of the switches; such lines that ask for nothing make no kernel log of it."""
    if event.text.startswith("detected NVSwitch"):
        return event.who == "Fatal"
    return event.kind not in ("boot", "hypervisor", "iommu-default", "time-jump") or event.first_s is not None
