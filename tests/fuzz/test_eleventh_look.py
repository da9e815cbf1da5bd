"""What a user makes the kernel log, what a node says of others, and what else the eleventh look tried (``eleventh_look.md``)."""

from __future__ import annotations

import time

import pytest

from torchtune_sys.formats.kernel_log import stamps
from torchtune_sys.formats.kernel_messages import events, read_log
from torchtune_sys.host.live_queries.kernel_log import kernel_log
from torchtune_sys.model.values import Missing
from two_users import SYSTEM_PYTHON, Scene, needs_root

XID = "NVRM: Xid (PCI:0000:{0}:00): 79, pid=1, GPU has fallen off the bus."
CRASHING = """
import ctypes, os, sys
os.write(handle := os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), b"\\0" * 4096)
call = ctypes.CDLL(None).mmap
call.restype, call.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)
place = call(None, 4096, 5, 2, handle, 0)
ctypes.CDLL(None).prctl(15, sys.argv[2].encode(), 0, 0, 0)
ctypes.CFUNCTYPE(None)(place)()
"""
"""Runs a page of a file of any name, with a task of any name: zeros write to where a register points, which is nowhere."""


@needs_root
@pytest.mark.parametrize(
    "argv",
    [
        (SYSTEM_PYTHON, "-c", CRASHING, XID.format("d1"), "x"),
        (SYSTEM_PYTHON, "-c", CRASHING, f"x\n{XID.format('d2')}", "NVRM: Xid (PCI:"),
        ("unshare", "-Urm", "mount", "-t", "tmpfs", "-o", "NVRM: Xid (PCI:0000:d3:00): 79", "none", "/mnt"),
    ],
)
def test_no_user_makes_the_kernel_log_say_that_a_gpu_is_lost(scene: Scene, argv: tuple[str, ...]) -> None:
    """The kernel quotes files that are mapped where a program crashes, and mount options; each was an Xid, for which a Prolog drains the node."""
    scene.alice.run([*argv], cwd=str(scene.alice.home))
    time.sleep(0.1)
    found = kernel_log("", 5.0)
    if isinstance(found, Missing):
        pytest.skip(str(found))
    mark = next(f"0000:d{number}:00" for number in "123" if f"0000:d{number}:00" in " ".join(argv))
    told = [line for line in found["lines"] if mark in line]
    if not told:
        pytest.skip("the kernel does not log it here (debug.exception-trace, user namespaces)")
    assert not [event for event in events(stamps(found["lines"])) if mark in event.subject]


STAMPS = ("[60230.298657] ", "Nov 27 03:00:00 n1 kernel: ", "2026-11-27T03:00:00+0000 n1 kernel: [60230.298657] ", "")
NAMED = (
    "python3[4698]: segfault at 0 ip 00007fde903ba003 sp 00007ffeb0399468 error 4 in {}[3,7fde903ba000+1000] likely on CPU 0",
    "NVRM: Xid (PCI:[9]: segfault at 0 ip 0 sp 0 error 4 in {}[3,7+1]",
    "traps: x[9] trap int3 ip:5 sp:7 error:0 in {}[4+1]",
    "x[9]: unhandled exception: DABT (lower EL), ESR 0x92000046, level 2 translation fault in {}[4+1]",
    "tmpfs: Unknown parameter '{}'",
    "tmpfs: Bad mount option {}",
    "overlayfs: failed to resolve '/x {}': -2",
    "process 'u/{}' started with executable stack",
)
MADE_UP = (
    XID.format("18"),
    "Memory failure: 0x1234: Sending SIGBUS to x:1 due to hardware memory corruption",
    "nvme nvme0: Removing after probe failure",
)


@pytest.mark.parametrize("stamp", STAMPS)
def test_a_name_that_a_user_chose_is_no_message_of_the_kernel_s(stamp: str) -> None:
    for made_up in MADE_UP:
        assert read_log(f"{stamp}{made_up}", "x") is not None
        for line in NAMED:
            for text in (made_up, f"x\\x0a{made_up}", f"x\n{' ' * 27}{made_up}") if stamp else (made_up,):
                assert read_log(stamp + line.format(text), "x") is None, line.format(text)


@pytest.mark.parametrize("stamp", STAMPS[:1])
def test_a_firmware_s_record_is_not_made_of_mount_options(stamp: str) -> None:
    rows = ("event severity: fatal", "section_type: memory error")
    assert read_log("".join(f"{stamp}{{1}}[Hardware Error]: {row}\n" for row in rows), "x") is not None
    assert read_log("".join(f"{stamp}tmpfs: Bad mount option [Hardware Error]: {row}\n" for row in rows), "x") is None


@pytest.mark.parametrize("name", ["Linux version 6", "ceph: mds0 hung", "libceph: osd1 u"])
def test_a_task_of_any_name_may_crash(name: str) -> None:
    """A boot would have made all that was logged before it old."""
    assert read_log(f"[5.100000] {name}[77]: segfault at 0 ip 0 sp 0 error 4 in x[3]", "x") is None
