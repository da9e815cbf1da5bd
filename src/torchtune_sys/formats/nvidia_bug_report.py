"""The log that NVIDIA's ``nvidia-bug-report.sh`` writes: 5 to 60 MB of sections, of which a few tell of what training depends on.

The sections are those of the script (its functions ``append`` and ``report_command``): a line of underscores, a title (``*** /path`` for a
file, else the command), and the content. Left out: X and Wayland, Vulkan, sound, memory maps, and ``nvidia-debugdump``, which is a
dump in base64 that NVIDIA alone can read and nearly all of a large log.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from torchtune_sys.formats.kernel_log import EARLIER

_START = b"Start of NVIDIA bug report log file"
_SEPARATOR = re.compile(rb"^_{40,60}[ \t]*\r?\n", re.MULTILINE)
_FILE = re.compile(r"\*\*\* (/\S{1,300})")
_KEPT_FILES = re.compile(
    r"/proc/(?:cmdline|cpuinfo|meminfo|modules|version)$|/proc/driver/nvidia/|/proc/sys/|/etc/(?:[a-z]+-release|issue)$"
    r"|/sys/kernel/mm/transparent_hugepage/|/var/lib/dkms/|/var/log/fabricmanager"
)
_KEPT_COMMANDS = ("nvidia-smi", "dmesg", "numactl", "dmidecode", "fabricmanager", "Scanning kernel log files")
_HEX = re.compile(rb"^[0-9a-f]{2,3}:(?: [0-9a-f]{2}){16}[ \t]*\r?\n", re.MULTILINE)
"""lspci -xxx."""
_LINES_OF_DMESG = 10
_OF_GPU = re.compile(rb"NVRM: Xid \([^)]{1,40}\): \d{1,4}|has fallen off the bus|RmInitAdapter failed|rm_init_adapter")
_COMMAND = 500
"""Characters from which on a line of a build's log is a command and no message."""


def is_one(data: bytes) -> bool:
    """Return whether a text, or a paste that begins with a few words of a person, is such a log."""
    return _START in data[: 1 << 16] and _SEPARATOR.search(data[: 1 << 16]) is not None


def reduced(data: bytes) -> bytes:
    """Return the sections that tell something, in their order.

    >>> log = b"_" * 44 + b"\\nStart of NVIDIA bug report log file\\n"
    >>> log += b"_" * 44 + b"\\n\\n*** /proc/asound/cards\\nx\\n" + b"_" * 44 + b"\\n\\n*** /proc/cmdline\\nquiet\\n"
    >>> reduced(log).replace(b"_" * 44, b"").split()[-3:]
    [b'***', b'/proc/cmdline', b'quiet']
    """
    starts = [0, *(found.end() for found in _SEPARATOR.finditer(data))]
    sections = [
        (start, end, _title(data[start : min(end, start + 2000)])) for start, end in itertools.pairwise([*starts, len(data)])
    ]
    dmesg = b"".join(
        data[start:end]
        for start, end, title in sections
        if title.startswith("dmesg") and data.count(b"\n[", start, end) > _LINES_OF_DMESG
    )
    lspci = max((section for section in sections if _listed(section[2])), key=lambda each: each[1] - each[0], default=None)
    kept = []
    for number, (start, end, title) in enumerate(sections):
        whole = number < 2 or (start, end, title) == lspci or ("lspci" in title and "-nntv" in title) or _telling(title)
        if dmesg and title.startswith("Scanning kernel log files"):  # lines of earlier boots stand there, too
            kept.append(_earlier(data[start:end], dmesg))
        elif title.startswith("*** /var/lib/dkms/"):
            kept.append(b"\n".join(line for line in data[start:end].split(b"\n") if len(line) < _COMMAND) + b"\n")
        elif whole:
            kept.append(_HEX.sub(b"", data[start:end]))
    return (b"_" * 44 + b"\n").join(kept)


def _earlier(section: bytes, dmesg: bytes) -> bytes:
    """Return the newest line of each kind on each GPU that the log of this boot does not hold, marked as one of an earlier boot.

    >>> _earlier(b"Jul 7 10:00:00 a kernel: NVRM: Xid (PCI:0000:01:00): 79, x\\n", b"[1.0] NVRM: loading\\n")
    b'An earlier boot logged: Jul 7 10:00:00 a kernel: NVRM: Xid (PCI:0000:01:00): 79, x\\n'
    """
    mark = EARLIER.encode()
    newest: dict[bytes, bytes] = {}
    for line in section.split(b"\n"):
        gpu = _OF_GPU.search(line)
        if gpu is not None and line[line.find(b"NVRM: ") :].strip() not in dmesg:
            newest[gpu[0]] = mark + line.strip() + b"\n"
    return b"".join(newest.values())


def _title(head: bytes) -> str:
    return next((line.strip() for line in head.decode("utf-8", "replace").split("\n") if line.strip()), "")


def _listed(title: str) -> bool:
    return "lspci" in title and "-nntv" not in title


def _telling(title: str) -> bool:
    file = _FILE.match(title)
    if file is not None:
        return _KEPT_FILES.match(file[1].replace("/./", "/")) is not None
    return "--unit" not in title and any(words in title for words in _KEPT_COMMANDS)


_CONTENT = re.compile(
    r"^\*\*\* (?P<path>/\S{1,300})[ \t]*\n(?:\*\*\* ls: [^\n]*\n)?(?P<text>(?:(?!\*\*\* |_{40}|={14})[^\n]*(?:\n|$))*)",
    re.MULTILINE,
)


def files(text: str) -> Iterator[tuple[str, str]]:
    """Yield (path, content) of the files in the log; none of those that did not exist.

    >>> list(files("*** /proc/cmdline\\n*** ls: -r--r--r-- 1 root root 0 /proc/cmdline\\nquiet splash\\n\\n" + "_" * 44 + "\\n"))
    [('/proc/cmdline', 'quiet splash\\n\\n')]
    """
    for found in _CONTENT.finditer(text):
        yield found["path"].replace("/./", "/"), found["text"]
