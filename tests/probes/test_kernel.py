"""The kernel's log of this machine, of a recording and of a copied tree; refused, wrapped, damaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import load
from torchtune_sys.host import queries
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.live_queries import kernel_log
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.host.recording.pseudonym import pseudonymise
from torchtune_sys.model.facts.kernel import KernelFacts
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.kernel.probe import parse_answer, probe

XID = "[   12.500000] NVRM: Xid (PCI:0000:18:00): 79, pid=7, name=python3, GPU has fallen off the bus."


def facts(**recording: Any) -> KernelFacts:
    return probe(RecordedHost(recording, "test"), Workload())


def test_a_recorded_log_is_read() -> None:
    found = facts(
        answers={
            "kernel-log": {"source": "/dev/kmsg", "lines": [XID], "now_s": 99.0, "booted": 1.7e9, "from_s": 0.0, "whole": True}
        }
    )
    assert [event.code for event in found.events] == [79]  # type: ignore[union-attr]
    assert (found.now_s, found.booted, found.whole) == (99.0, 1.7e9, True)


def test_refusal_is_no_healthy_log() -> None:
    found = facts(answers={"kernel-log": {"error": "denied", "source": "/dev/kmsg", "remedy": "run as root"}})
    assert isinstance(found.events, Missing) and found.events.why is Why.DENIED and found.events.remedy


def test_a_copied_tree_may_hold_the_log_as_a_file() -> None:
    found = facts(
        files={"/var/log/kern.log": ["Aug 26 14:08:07 host kernel: [   12.500000] NVRM: Xid (PCI:0000:18:00): 79, x"]},
        complete=False,
    )
    assert [event.code for event in found.events] == [79]  # type: ignore[union-attr]
    assert found.source == "/var/log/kern.log"


def test_without_a_log_it_is_unknown() -> None:
    assert isinstance(facts(complete=False).events, Missing)


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.floats(), st.text(), st.integers()),
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(
                st.sampled_from(("lines", "source", "now_s", "booted", "from_s", "whole", "first", "last")), inner, max_size=8
            ),
        ),
        max_leaves=12,
    )
)
def test_any_answer_can_be_read(answer: Any) -> None:
    assert isinstance(parse_answer(answer), KernelFacts)


def test_this_machine_answers() -> None:
    found = LiveHost().ask(queries.KERNEL_LOG)
    if isinstance(found, Missing):
        assert found.why in (Why.DENIED, Why.NOT_SUPPORTED, Why.FAILED) and found.remedy
        return
    assert found["source"] and isinstance(found["lines"], list)
    assert isinstance(parse_answer(found).events, tuple)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user")
def test_another_user_is_told_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    if Path("/proc/sys/kernel/dmesg_restrict").read_text().strip() != "1":
        pytest.skip("kernel.dmesg_restrict is 0 here")
    child = os.fork()
    if child == 0:
        os.setgroups([])
        os.setuid(65534)
        found = kernel_log._ring()
        os._exit(0 if isinstance(found, Missing) and found.why is Why.DENIED and "root" in found.remedy else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_container_without_the_device_is_not_healthy(tmp_path: Path) -> None:
    found = kernel_log._ring(str(tmp_path / "kmsg"))
    assert isinstance(found, Missing) and found.why is Why.NOT_SUPPORTED and "host" in found.remedy


class _Ring:
    """Answers os.read as /dev/kmsg does: records, EPIPE where some were overwritten, EAGAIN at the end."""

    def __init__(self, *answers: bytes | OSError) -> None:
        self._answers = list(answers)

    def read(self, _handle: int, _size: int) -> bytes:
        answer = self._answers.pop(0) if self._answers else BlockingIOError()
        if isinstance(answer, OSError):
            raise answer
        return answer


@pytest.mark.parametrize(
    ("answers", "records", "lost"),
    [
        ((b"5,0,0,-;Linux version 6.8\n", b"6,1,10,-;a\n"), 2, False),
        ((BrokenPipeError(32, "lost"), b"6,900,10,-;a\n"), 1, True),
        ((BrokenPipeError(32, "lost"),) * 500, 0, True),
        ((), 0, False),
    ],
)
def test_ring_buffer(monkeypatch: pytest.MonkeyPatch, answers: tuple[bytes | OSError, ...], records: int, lost: bool) -> None:
    monkeypatch.setattr(kernel_log.os, "read", _Ring(*answers).read)
    found, gone = kernel_log._records(0)
    assert (len(found), gone) == (records, lost)


def test_what_is_no_record_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = _Ring(
        b"6,1,10,-;Linux version 6\n",
        b"NVRM: Xid no record\n",
        b"3,2,12500000,-;" + XID[15:].encode() + b"\n SUBSYSTEM=pci\n",
        b"\xff;NVRM: \xfe\n",
    )
    monkeypatch.setattr(kernel_log.os, "read", ring.read)
    found = kernel_log._ring("/dev/null")
    assert not isinstance(found, Missing)
    assert found["lines"] == ["[    0.000010] Linux version 6", XID]
    assert found["whole"] is False and found["from_s"] == 1e-5


def test_the_journal_without_permission_prints_nothing_and_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtune_sys.host.base import Output
    from torchtune_sys.host.children import process

    monkeypatch.setattr(process, "run", lambda *_args, **_kw: Output(rc=0, stdout="", stderr=""))
    found = kernel_log._journal(1.0)
    assert isinstance(found, Missing) and found.why is Why.DENIED


def test_a_log_file_is_read_from_its_end(tmp_path: Path) -> None:
    path = tmp_path / "kern.log"
    path.write_text(f"Nov 20 10:00:00 h kernel: Booting\nNov 20 10:05:00 h kernel: {XID}\nNov 20 11:00:00 h kernel: the end\n")
    answer = kernel_log._file(str(path))
    assert not isinstance(answer, Missing)
    found = parse_answer(answer)
    assert [event.code for event in found.events] == [79]  # type: ignore[union-attr]
    assert isinstance(found.now_s, float) and isinstance(found.from_s, float)
    assert found.now_s - found.from_s == 3600


def test_names_leave_a_recorded_log() -> None:
    lines = [
        "[    1.000000] nfs: server filer7.corp.example not responding, still trying",
        "[    2.000000] NVRM: GPU at PCI:0000:9b:00: GPU-509665ad-b600-ac93-3616-d754b23d636d",
    ]
    recording = {"answers": {"kernel-log": {"source": "/dev/kmsg", "lines": lines}}}
    text = str(pseudonymise(recording, "salt"))
    assert "filer7" not in text and "509665ad" not in text
    assert "0000:9b:00" in text


def test_the_healthy_host_has_a_log_without_events_to_judge() -> None:
    found = load("healthy").kernel
    assert isinstance(found, KernelFacts) and isinstance(found.events, tuple)
    assert {event.kind for event in found.events} == {"boot", "driver-load"}


ON_IMAGES = (
    "XFS (dm-3): log I/O error -5",
    "Buffer I/O error on dev dm-3, logical block 0, async page read",
    "EXT4-fs (dm-3): Remounting filesystem read-only",
    "XFS (loop0): Filesystem has been shut down due to log error (0x2): Corruption of in-memory data",
    "blk_update_request: critical medium error, dev nullb0, sector 0",
)
OF_DISKS = (
    "XFS (dm-1): Metadata corruption detected at xfs_agi_verify+0x1/0x2 [xfs], xfs_agi block 0x2",
    "EXT4-fs error (device md0): ext4_lookup:1855: inode #12: comm python: iget: checksum invalid",
    "blk_update_request: I/O error, dev nvme0n1, sector 8",
    "Buffer I/O error on dev dm-2, logical block 0, async page read",
)
BLOCK = ["dm-1", "dm-2", "dm-3", "loop0", "loop1", "md0", "nvme0n1", "sda"]
SLAVES = {"dm-1": ["nvme0n1"], "dm-2": ["sda", "loop1"], "dm-3": ["dm-4"], "dm-4": ["loop0", "loop1p1"], "md0": ["sda"]}


def disk_errors(*lines: str, **dirs: list[str]) -> list[str]:
    log = {"source": "/dev/kmsg", "lines": [f"[   12.500000] {line}" for line in lines], "now_s": 99.0}
    found = facts(answers={"kernel-log": log}, dirs=dirs)
    assert not isinstance(found.events, Missing)
    return [event.subject for event in found.events]


def test_an_image_s_errors_are_no_disk_s() -> None:
    """A test's or a user's loop device, and what is mapped on it; a map of a disk and an image may be the disk's."""
    slaves = {f"/sys/class/block/{name}/slaves": below for name, below in SLAVES.items()}
    dirs = {"/sys/class/block": [*BLOCK, "dm-4"], **slaves}
    assert disk_errors(*ON_IMAGES, **dirs) == []
    assert disk_errors(*ON_IMAGES, *OF_DISKS, **dirs) == ["dm-1", "md0", "nvme0n1", "dm-2"]


def test_a_mapped_device_that_is_gone_is_used_by_nobody() -> None:
    """But a disk that is gone may have died; and where the kernel does not show its devices, nothing is known of them."""
    lines = ("XFS (dm-7): log I/O error -5", "EXT4-fs error (device md127): x", "I/O error, dev nvme9n1, sector 8")
    assert disk_errors(*lines, **{"/sys/class/block": BLOCK}) == ["nvme9n1"]
    assert disk_errors(*lines) == ["dm-7", "md127", "nvme9n1"]
    loop = {"/sys/class/block": ["dm-7", "dm-8"], **{f"/sys/class/block/dm-{one}/slaves": [f"dm-{15 - one}"] for one in (7, 8)}}
    assert disk_errors(lines[0], **loop) == ["dm-7"], "a map that lies on itself"
