"""One call to NVML at a time, each guarded by itself: what the child that asks NVML is built of (see ``host.nvml.child``).

Old drivers lack functions, GeForce and vGPU refuse some, MIG and a lost GPU refuse others: a refusal becomes
``{"$missing": why, "source": call, "detail": …}`` in the place of that one fact.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from typing import Any

WHY = {
    "NOT_SUPPORTED": "not-supported",
    "FUNCTION_NOT_FOUND": "not-supported",
    "ARGUMENT_VERSION_MISMATCH": "not-supported",
    "DEPRECATED": "not-supported",
    "VGPU_ECC_NOT_SUPPORTED": "not-supported",
    "NO_PERMISSION": "denied",
    "OPERATING_SYSTEM": "denied",
    "LIBRARY_NOT_FOUND": "no-tool",
    "DRIVER_NOT_LOADED": "absent",
    "NO_DATA": "absent",
    "TIMEOUT": "timeout",
}
"""Everything else is ``failed``. OPERATING_SYSTEM: the operating system or a cgroup blocks the device (nvml.h)."""
TELLS = {
    "DRIVER_NOT_LOADED": "the NVIDIA kernel module is not loaded",
    "LIBRARY_NOT_FOUND": "libnvidia-ml.so.1 cannot be loaded",
    "LIB_RM_VERSION_MISMATCH": "the loaded kernel module and the user-space library have different versions",
    "NO_PERMISSION": "permission denied",
    "OPERATING_SYSTEM": "the operating system or a cgroup blocks the GPU's control device",
    "FUNCTION_NOT_FOUND": "this driver's library does not have the function",
    "ARGUMENT_VERSION_MISMATCH": "this driver knows only another version of the structure",
    "NOT_SUPPORTED": "not supported by this GPU",
    "GPU_IS_LOST": "the GPU has fallen off the bus or is otherwise inaccessible",
    "RESET_REQUIRED": "the GPU needs a reset before it can be used again",
}
_LOST = frozenset(("GPU_IS_LOST", "RESET_REQUIRED"))


class NvmlRefused(Exception):
    """An answer that NVML gives as a value but that means none."""

    def __init__(self, why: str, detail: str) -> None:
        super().__init__(detail)
        self.why = why


def missing(why: str, source: str, detail: str, remedy: str = "") -> dict[str, str]:
    found = {"$missing": why, "source": source, "detail": detail}
    return {**found, "remedy": remedy} if remedy else found


def refused(found: object) -> bool:
    """Return whether an answer is a missing fact."""
    return isinstance(found, dict) and "$missing" in found


class NvmlCalls:
    """Calls by name; remembers whether the GPU was reported lost, and which call it is in, since when.

    ``crashed`` names the calls (``name@gpu``) in which the library crashed before, which are not made again.
    """

    def __init__(self, nvml: Any, crashed: Mapping[str, str], gpu: int = -1) -> None:
        self.nvml = nvml
        self.crashed = crashed
        self.gpu = gpu
        self.lost = self.reset_required = False
        self.at = ""
        self.since = time.monotonic()
        self._names = {
            getattr(nvml, name): name.removeprefix("NVML_ERROR_") for name in dir(nvml) if name.startswith("NVML_ERROR_")
        }

    def turn_to(self, gpu: int) -> None:
        self.gpu, self.lost, self.reset_required, self.at = gpu, False, False, ""

    def name(self, error: Any) -> str:
        code = getattr(error, "value", None)
        return self._names.get(code, f"error {code}")

    def refusal(self, error: Any, call: str) -> dict[str, str]:
        name = self.name(error)
        self.lost = self.lost or name in _LOST
        self.reset_required = self.reset_required or name == "RESET_REQUIRED"
        why = WHY.get(name, "failed")
        return missing(why, call, TELLS.get(name, name), "run as root" if why == "denied" else "")

    def mark(self, name: str) -> None:
        """Say which call comes now, so that it can be named if it does not return."""
        self.since = time.monotonic()
        if name != self.at:
            self.at = name
            os.write(1, f"> {name}@{self.gpu}\n".encode())

    def call(self, names: str, *args: Any, then: Callable[[Any], Any] = lambda found: found) -> Any:
        """Return the first of several functions ("new, old") that this library has."""
        alternatives = names.split(", ")
        for position, name in enumerate(alternatives):
            if f"{name}@{self.gpu}" in self.crashed:
                return missing("failed", name, f"the NVIDIA library crashed in it: {self.crashed[f'{name}@{self.gpu}']}")
            self.mark(name)
            try:
                function = getattr(self.nvml, name, None)
                if function is None:
                    raise self.nvml.NVMLError(self.nvml.NVML_ERROR_FUNCTION_NOT_FOUND)
                return then(function(*args))
            except self.nvml.NVMLError as error:
                if self.name(error) == "FUNCTION_NOT_FOUND" and position + 1 < len(alternatives):
                    continue
                return self.refusal(error, name)
            except NvmlRefused as found:
                return missing(found.why, name, str(found))
            except (ValueError, TypeError, IndexError, KeyError, AttributeError, UnicodeDecodeError) as error:
                return missing("unparsed", name, f"{type(error).__name__}: {error}")
        raise AssertionError("no function given")

    def fill(self, name: str, kind: str, handle: Any, then: Callable[[Any], Any]) -> Any:
        """Call what fills a structure of the caller; its version is refused by drivers that know only an older one."""
        from ctypes import byref

        make = getattr(self.nvml, kind, None)
        if make is None:
            return missing("not-supported", name, "the installed nvidia-ml-py does not know it")
        found = make()
        return self.call(name, handle, byref(found), then=lambda _: then(found))

    def field(self, handle: Any, number: int, then: Callable[[Any], Any], scope: int = 0) -> Any:
        """Return one field value, an unsigned number."""

        def value(values: Any) -> Any:
            if values[0].nvmlReturn != 0:
                raise self.nvml.NVMLError(values[0].nvmlReturn)
            return then(values[0].value.ullVal if values[0].valueType in (2, 3) else values[0].value.uiVal)

        return self.call("nvmlDeviceGetFieldValues", handle, [(number, scope)], then=value)
