"""Files of a host in pasted text: below the command or the heading that names them, or known by what they hold.

What is read of them is the probes' business, which read the same files on a host. Only files are taken of which a part misleads nobody: a value, or a
table of which each line stands for itself. A file that is shown twice with different contents (two nodes, before and after) is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torchtune_sys.formats.kernel_log import message_start

_PATH = (
    r"/(?:etc/(?:os|redhat|centos)-release|usr/lib/os-release"
    r"|proc/(?:cmdline|version|self/limits|sys/(?:fs|kernel|net|vm)/[\w./-]{2,100})"
    r"|sys/(?:kernel/mm/transparent_hugepage/\w{1,40}|module/\w{1,40}/parameters/\w{1,60}"
    r"|devices/system/cpu/(?:online|smt/control|intel_pstate/no_turbo|cpufreq/boost)))"
)
_PROMPT = r"(?:\[[^\]\n]{1,60}\]|[\w.@:~/+-]{1,120})? ?[$#%>+] ?"
"""Of a shell, before a command; one class of characters, so that no line is tried twice."""
_SHOWN = re.compile(rf"(?:{_PROMPT})?(?:sudo )?cat ({_PATH})")
_HEADED = re.compile(rf"(?:==> ({_PATH}) <==|(?:\d{{1,3}}\. |#{{1,4}} |\[)?(?:[^\n]{{0,60}}, from )?({_PATH})\]?:?)")
_GREPPED = re.compile(rf"({_PATH}):([^\n]{{0,2000}})")
_ENDS = re.compile(rf"\s*$|```|={{3,}}|-{{3,}}$|</?\w|{_PROMPT}[a-z./]|/(?:proc|sys|etc|usr)/")
_LONGEST = 200
"""Lines of one file that are taken."""


def files(text: str) -> dict[str, str]:
    r"""Return the contents by path.

    >>> files("$ cat /proc/sys/kernel/numa_balancing\n1\n\n==> /sys/kernel/mm/transparent_hugepage/enabled <==\nalways [madvise] never\n")
    {'/proc/sys/kernel/numa_balancing': '1', '/sys/kernel/mm/transparent_hugepage/enabled': 'always [madvise] never'}
    >>> files("/proc/sys/vm/swappiness:60\n")
    {'/proc/sys/vm/swappiness': '60'}
    >>> files("n1$ cat /proc/sys/vm/swappiness\n60\nn2$ cat /proc/sys/vm/swappiness\n10\n")
    {}
    """
    found: dict[str, set[str]] = {}
    for path, content in (*_named(text.split("\n")), *_known(text)):
        if content:
            found.setdefault(path, set()).add(content)
    return _agreed(found)


def _agreed(found: dict[str, set[str]]) -> dict[str, str]:
    """Return the files of which everything that shows them shows the same."""
    return {path: next(iter(contents)) for path, contents in found.items() if len(contents) == 1}


OF_BOOT = {
    "/proc/version": re.compile(r"Linux version \d\S{2,100} \([^\n]{2,600}$", re.MULTILINE),
    "/proc/cmdline": re.compile(r"ommand line: ([^\s:][^\n]{9,900})$", re.MULTILINE),
}
"""What the kernel's log repeats of files at each boot (Linux init/main.c); a line that was cut at printk's 1,024 characters is none."""


def of_log(text: str) -> dict[str, str]:
    """Return the files that a kernel's log repeats, by path; of several boots that differ nothing.

    >>> of_log("[    0.000000] Command line: BOOT_IMAGE=/vmlinuz ro iommu=off\\n[    9.1] usb 1-1: Command line: what a user wrote")
    {'/proc/cmdline': 'BOOT_IMAGE=/vmlinuz ro iommu=off'}
    """
    found: dict[str, set[str]] = {}
    for path, pattern in OF_BOOT.items():
        for match in pattern.finditer(text):
            line = text[text.rfind("\n", 0, match.start()) + 1 : match.end()]
            begun = message_start(line)
            if begun is not None and line[begun:].startswith(("Command line: ", "Kernel command line: ", "Linux version ")):
                found.setdefault(path, set()).add(match[match.lastindex or 0].strip())
    return _agreed(found)


def recording(text: str) -> dict[str, Any]:
    """Return what a paste holds of a recording of the host; empty where it is nothing.

    >>> recording("Linux n1 5.15.0-94-generic #104-Ubuntu SMP Tue Jan 9 15:25:40 UTC 2024 x86_64 x86_64 x86_64 GNU/Linux")["answers"]["uname"]
    {'release': '5.15.0-94-generic', 'machine': 'x86_64'}
    """
    document: dict[str, Any] = {}
    if held := {**of_log(text), **files(text)}:
        document["files"] = held
    kernels = {found.groups() for found in _UNAME.finditer(text)}
    if len(kernels) == 1:
        release, machine = next(iter(kernels))
        document["answers"] = {"uname": {"release": release, "machine": machine}}
    return {**document, "complete": False} if document else {}


_UNAME = re.compile(
    r"^(?:[^\n]{0,80}[$#>] )?Linux \S{1,64} (\d{1,2}\.\d{1,3}\S{0,80}) #\d\S{0,80} [^\n]{0,160}?"
    r"\b(x86_64|aarch64|ppc64le|riscv64|s390x)\b[^\n]{0,60}\bLinux[ \t]*$",
    re.MULTILINE,
)
"""What ``uname -a`` prints (coreutils; busybox ends with Linux alone)."""


def _named(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Return the files below their names."""
    for at, line in enumerate(lines):
        if len(line) > _WIDEST or not any(root in line for root in _ROOTS):
            continue
        if found := _GREPPED.fullmatch(line):
            yield found[1], found[2].strip()
            continue
        headed = _SHOWN.fullmatch(line) or _HEADED.fullmatch(line)
        if headed:
            yield next(filter(None, headed.groups())), _below(lines, at + 1)


_WIDEST = 2200
_ROOTS = ("/proc/", "/sys/", "/etc/", "/usr/lib/")


def _below(lines: list[str], start: int) -> str:
    """Return the lines of a file, up to what ends it."""
    held: list[str] = []
    for line in lines[start : start + _LONGEST]:
        if _ENDS.match(line):
            break
        held.append(line)
    return "\n".join(held)


_RELEASE = re.compile(
    r'(?:^[A-Z][A-Z_]{1,40}=[^\n]{0,300}\n){0,40}^ID="?\w[^\n]{0,60}\n(?:^[A-Z][A-Z_]{1,40}=[^\n]{0,300}(?:\n|\Z)){2,40}',
    re.MULTILINE,
)
_KNOWN = (
    ("/proc/cmdline", re.compile(r"^BOOT_IMAGE=\S{1,200} [^\n]{2,4000}$", re.MULTILINE)),
    ("/proc/version", re.compile(r"^Linux version \d\S{2,100} \([^\n]{2,600}$", re.MULTILINE)),
    ("/sys/kernel/mm/transparent_hugepage/enabled", re.compile(r"^(?:\[always\] madvise never|always \[madvise\] never|always madvise \[never\])$", re.MULTILINE)),
)  # fmt: skip
"""Files that look like nothing else: defrag has five words, shmem_enabled six (Linux mm/huge_memory.c)."""


def _known(text: str) -> Iterator[tuple[str, str]]:
    """Return the files that nothing names."""
    if "PRETTY_NAME=" in text:
        yield from (("/etc/os-release", found[0].strip()) for found in _RELEASE.finditer(text) if "PRETTY_NAME=" in found[0])
    for path, pattern in _KNOWN:
        yield from ((path, found[0]) for found in pattern.finditer(text))
