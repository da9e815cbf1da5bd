"""The kernel's log on this machine: the ring buffer, or what a log daemon kept of it.

Only the lines that may say something leave this module (``formats/kernel_log.py``).
"""

from __future__ import annotations

import errno
import os
from typing import Any

from torchtune_sys.formats.kernel_log import telling
from torchtune_sys.host.base import missing_from
from torchtune_sys.host.secrets.filter import brief
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why

RING = "/dev/kmsg"
_RECORD = 16_384
"""Bytes; a shorter buffer than a record gives EINVAL (PRINTK_MESSAGE_MAX is 2,048, before Linux 6.3 it was 8,192)."""
_RECORDS = 65_536
_FILE = "/var/log/kern.log"
_TAIL = 4 << 20
_REMEDY = "run as root (CAP_SYSLOG), or set kernel.dmesg_restrict=0"


def kernel_log(_argument: str, timeout_s: float) -> Fact[dict[str, Any]]:
    found = _ring()
    if not isinstance(found, Missing):
        return found
    other = _file()
    if isinstance(other, Missing) and found.why is Why.DENIED and _worth_a_child():
        other = _journal(timeout_s)
    return found if isinstance(other, Missing) else other


def _worth_a_child() -> bool:
    """Whether somebody asks for the log of this machine: it has NVIDIA's or AMD's driver, or RDMA adapters."""
    return any(map(os.path.isdir, ("/proc/driver/nvidia", "/sys/class/kfd", "/sys/class/infiniband")))


def _ring(path: str = RING) -> Fact[dict[str, Any]]:
    """Each record is ``level,number,microseconds,flags;text`` with escapes (Documentation/ABI/testing/dev-kmsg)."""
    import time

    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        return _refused(missing_from(error, path))
    try:
        records, lost = _records(handle)
    except OSError as error:
        return _refused(missing_from(error, path))
    finally:
        os.close(handle)
    head = records[0].split(b",", 3) if records else []
    if len(head) < 4 or not head[2].isdigit():
        return Missing(Why.FAILED, path, "the log is empty, which that of a running kernel never is", _REMEDY)
    now = time.clock_gettime(time.CLOCK_MONOTONIC)
    messages = b"\n".join({record.partition(b";")[2] for record in records})
    lines = telling(b"".join(records).decode("utf-8", "replace"), messages.decode("utf-8", "replace"))
    return {
        "source": path,
        "lines": [_line(line) for line in lines if line.count(",", 0, line.find(";")) > 2],
        "now_s": round(now, 3),
        "booted": round(time.time() - now, 1),
        "from_s": int(head[2][:18]) / 1e6,
        "whole": head[1] == b"0" and not lost,
    }


def _refused(found: Missing) -> Missing:
    if found.why is Why.DENIED:
        return Missing(Why.DENIED, found.source, found.detail, _REMEDY)
    if found.why is Why.ABSENT:
        return Missing(Why.NOT_SUPPORTED, found.source, "there is no kernel log here: a container", "run on the host")
    return found


def _records(handle: int) -> tuple[list[bytes], bool]:
    """Return records, and whether some were overwritten while they were read."""
    found: list[bytes] = []
    lost = 0
    while len(found) < _RECORDS and lost < 100:
        try:
            data = os.read(handle, _RECORD)
        except BlockingIOError:
            break
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            lost += 1
            continue
        if not data:
            break
        found.append(data)
    return found, lost > 0


def _line(record: str) -> str:
    """Return a record's first line as dmesg prints it.

    >>> _line("6,339,5140900,-;NVRM: loading NVIDIA UNIX x86_64 Kernel Module")
    '[    5.140900] NVRM: loading NVIDIA UNIX x86_64 Kernel Module'
    """
    head, _, text = record.partition(";")
    microseconds = head.split(",")[2]
    time = natural(microseconds, 17) or 0
    return f"[{time // 1_000_000:5d}.{time % 1_000_000:06d}] {text}"


def _file(path: str = _FILE) -> Fact[dict[str, Any]]:
    """Return the end of what rsyslog wrote; members of the group adm may read it."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        return missing_from(error, path)
    try:
        size = os.fstat(handle).st_size
        data = os.pread(handle, _TAIL, max(size - _TAIL, 0))
    except OSError as error:
        return missing_from(error, path)
    finally:
        os.close(handle)
    if not data:
        return Missing(Why.ABSENT, path, "the file is empty")
    return {"source": path, **_text(data.decode("utf-8", "replace"))}


def _text(text: str) -> dict[str, Any]:
    """``first`` and ``last``: the ends of the log, for their time stamps alone."""
    lines = text.strip().rsplit("\n", 1)
    return {"lines": telling(text), "first": brief(lines[0].partition("\n")[0], 60), "last": brief(lines[-1], 60)}


def _journal(timeout_s: float) -> Fact[dict[str, Any]]:
    from torchtune_sys.host.children import process

    argv = ("journalctl", "-k", "-b", "-o", "short-iso", "--no-pager", "-q")
    found = process.run(argv, timeout_s=min(timeout_s, 3.0))
    if isinstance(found, Missing):
        return found
    if found.rc != 0 or found.stdout.count("\n") < 2:  # without permission it prints nothing and says 0
        return Missing(Why.DENIED, "journalctl -k", brief(found.stderr, 100) or "it shows nothing", _REMEDY)
    return {"source": "journalctl -k", **_text(found.stdout)}
