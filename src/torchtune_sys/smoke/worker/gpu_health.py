"""One GPU while it works: clocks, heat, power, why it is held back, ECC errors (NVML), and Xids (the kernel's log).

NVML is asked in the rank itself, as torch and NCCL do, too: a command for each rank would take seconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import time
from typing import Any, Dict, List, Optional, Tuple

from torchtune_sys.smoke.worker.context import StageFailed

_LIBRARY = "libnvidia-ml.so.1"
_SM, _CORE, _CORRECTED, _UNCORRECTED, _SINCE_START = 1, 0, 0, 1, 0
"""nvml.h: NVML_CLOCK_SM, NVML_TEMPERATURE_GPU, NVML_MEMORY_ERROR_TYPE_…, NVML_VOLATILE_ECC."""
_READINGS: Tuple[Tuple[str, Tuple[str, ...], Tuple[int, ...], Any], ...] = (
    ("clock", ("nvmlDeviceGetClockInfo",), (_SM,), ctypes.c_uint),
    ("temperature", ("nvmlDeviceGetTemperature",), (_CORE,), ctypes.c_uint),
    ("milliwatts", ("nvmlDeviceGetPowerUsage",), (), ctypes.c_uint),
    (  # the second until driver 535
        "reasons",
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
        (),
        ctypes.c_ulonglong,
    ),
    ("corrected", ("nvmlDeviceGetTotalEccErrors",), (_CORRECTED, _SINCE_START), ctypes.c_ulonglong),
    ("uncorrected", ("nvmlDeviceGetTotalEccErrors",), (_UNCORRECTED, _SINCE_START), ctypes.c_ulonglong),
)
_HARMLESS_REASONS = 0x1 | 0x2 | 0x4 | 0x10 | 0x100
"""Idle, clocks that somebody set, the power cap (at which a GPU under load is meant to run), sync boost, a display (nvml.h)."""
_BETWEEN_LOOKS_S = 0.25
XIDS_OF_HARDWARE = frozenset(
    (46, 48, 54, 61, 62, 64, 74, 79, 94, 95, 109, 110, 119, 120, 136, 140, 143)
    + (144, 145, 146, 147, 148, 149, 150, 151, 155, 156, 158, 167, 169, 171, 172, 173, 175)
)
"""Those that knowledge/data/xid.csv calls a fault of the GPU, its memory, its links or its firmware. Others are told, no more: a program's own
error may be another program's on the same GPU."""
_XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:]+)[^)]*\): (\d+)(.*)")
_RECORD = 8192


class _Pci(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = [("legacy", ctypes.c_char * 16), ("numbers", ctypes.c_uint * 5), ("bus_id", ctypes.c_char * 32)]


class GpuHealth:
    """From when it is made: ``look`` while the GPU works, ``judge`` at the end. Without a GPU, NVML or the kernel's log it knows less, and says so."""

    def __init__(self, uuid: str, log: str = "/dev/kmsg") -> None:
        self.nvml, self.device = _device(uuid)
        self.place = self._place()
        self.log = _end_of_log(log) if self.place else None
        self.readings: List[Dict[str, int]] = []
        self._next_look_s = 0.0
        self.look()

    def look(self) -> None:
        if self.nvml is not None and time.monotonic() >= self._next_look_s:
            self.readings.append({name: value for name, value in map(self._read, _READINGS) if value is not None})
            self._next_look_s = time.monotonic() + _BETWEEN_LOOKS_S

    def judge(self) -> str:
        """Return what there is to say. Raises StageFailed where the GPU counted errors that it could not correct, or the driver logged a fault of it."""
        self._next_look_s = 0.0
        self.look()
        xids = self.xids()
        faults = [text for number, text in xids if number in XIDS_OF_HARDWARE]
        grown = self._grown("uncorrected")
        if grown > 0:
            seen = "the GPU counted %d uncorrectable ECC errors under load" % grown
            raise StageFailed("gpu-ecc-uncorrectable", "; ".join([seen, *faults[:1]]))
        if faults:
            raise StageFailed("", "the driver logged %d fault(s) of this GPU under load: %s" % (len(faults), faults[0]))
        return self._words([text for _, text in xids])

    def close(self) -> None:
        if self.log is not None:
            os.close(self.log)
            self.log = None

    def _read(self, reading: Tuple[str, Tuple[str, ...], Tuple[int, ...], Any]) -> Tuple[str, Optional[int]]:
        name, functions, given, kind = reading
        value = kind()
        for function in functions:
            call = getattr(self.nvml, function, None)
            if call is not None and call(self.device, *given, ctypes.byref(value)) == 0:
                return name, int(value.value)
        return name, None

    def _place(self) -> str:
        """As the kernel's log names it: 0000:3b:00."""
        found = _Pci()
        if self.nvml is None or self.nvml.nvmlDeviceGetPciInfo_v3(self.device, ctypes.byref(found)) != 0:
            return ""
        return _bus_place(found.bus_id.decode(errors="replace"))

    def _grown(self, name: str) -> int:
        counts = [reading[name] for reading in self.readings if name in reading]
        return counts[-1] - counts[0] if counts else 0

    def xids(self) -> List[Tuple[int, str]]:
        """Return the numbers and texts that the driver logged of this GPU since it was asked last."""
        told = []
        for line in _new_lines(self.log) if self.log is not None else ():
            found = _XID.search(line)
            if found and _bus_place(found.group(1)) == self.place:
                told.append((int(found.group(2)), "Xid %s%s" % (found.group(2), found.group(3))))
        return told

    def _words(self, xids: List[str]) -> str:
        if not self.readings:
            return ""
        values = {name: [one[name] for one in self.readings if name in one] for name, *_ in _READINGS}
        told: List[str] = []
        clocks = values["clock"][1:] or values["clock"]  # the first was read before there was a load
        if clocks:
            told.append("SM clock %d to %d MHz" % (min(clocks), max(clocks)))
        if values["temperature"]:
            told.append("%d to %d C" % (min(values["temperature"]), max(values["temperature"])))
        if values["milliwatts"]:
            told.append("at most %d W" % (max(values["milliwatts"]) // 1000))
        reasons = 0
        for value in values["reasons"]:
            reasons |= value & ~_HARMLESS_REASONS
        if reasons:
            told.append("held back (clock event reasons %#x: nvidia-smi -q -d PERFORMANCE)" % reasons)
        if self._grown("corrected") > 0:
            told.append("%d ECC errors corrected" % self._grown("corrected"))
        told.append(
            "; ".join(xids) if xids else "no Xid" if self.log is not None else "the kernel's log could not be read for Xids"
        )
        return "under load: %s" % ", ".join(told)


def _device(uuid: str) -> Tuple[Any, ctypes.c_void_p]:
    """NVML and its handle of a GPU; None where either cannot be had. A MIG instance is asked for as that."""
    device = ctypes.c_void_p()
    try:
        nvml: Any = ctypes.CDLL(_LIBRARY) if uuid else None
        started = uuid and nvml.nvmlInitWithFlags(0) == 0
        for kind in ("GPU-", "MIG-") if started else ():
            if nvml.nvmlDeviceGetHandleByUUID((kind + uuid).encode(), ctypes.byref(device)) == 0:
                return nvml, device
    except (OSError, AttributeError):  # no driver here; one that lacks a function
        pass
    return None, device


def _bus_place(place: str) -> str:
    """Domain, bus and device as four, two and two digits."""
    domain, _, rest = place.lower().partition(":")
    return "%s:%s" % (domain[-4:].rjust(4, "0"), rest.partition(".")[0])


def _end_of_log(path: str) -> Optional[int]:
    """Open the kernel's log, from now on: Documentation/ABI/testing/dev-kmsg. None where this user may not read it."""
    with contextlib.suppress(OSError):
        log = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        os.lseek(log, 0, os.SEEK_END)
        return log
    return None


def _new_lines(log: int) -> List[str]:
    lines: List[str] = []
    while len(lines) < 10000:
        try:
            record = os.read(log, _RECORD)
        except OSError as error:
            if error.errno == errno.EPIPE:  # some were overwritten: the next read goes on after them
                continue
            break
        if not record:
            break
        lines += record.decode(errors="replace").splitlines()
    return lines
