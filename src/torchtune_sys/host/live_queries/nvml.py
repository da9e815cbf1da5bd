"""The GPUs: NVML in a child process, or, where its library cannot be loaded, what nvidia-smi prints."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from torchtune_sys.host.children import process
from torchtune_sys.host.children.endings import ended_by
from torchtune_sys.host.secrets.filter import brief
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_CHILD = os.path.join(os.path.dirname(os.path.dirname(__file__)), "nvml", "child.py")
_SMI = ("nvidia-smi", "-q", "-x")


_MARGIN_S = 0.5
"""Left to the child for its end, within the time for the whole look."""
_CRASHES = 3


def nvml(_argument: str, timeout_s: float) -> Fact[Any]:
    """Return plain JSON data in the shape of ``GpuFacts``."""
    started = time.monotonic()
    found = _child(started + timeout_s)
    if isinstance(found, Missing) or found.get("error") not in ("LIBRARY_NOT_FOUND", "NO_BINDING"):
        return found
    other = _nvidia_smi(timeout_s - (time.monotonic() - started))
    return found if isinstance(other, Missing) and other.why is Why.NO_TOOL else other


def _child(deadline: float) -> Fact[Any]:
    """Asked again without the call in which the library crashed, so that a crash costs no more than that."""
    crashed: list[str] = []
    while True:
        left = max(deadline - time.monotonic(), 0.1)
        until = time.monotonic() + max(left - _MARGIN_S, left / 2)
        unfinished: list[str] = []
        argv = (sys.executable, "-IS" if sys.flags.no_site else "-I", _CHILD, f"{until:.3f}", *crashed)
        output = process.run(argv, timeout_s=left, unfinished=unfinished)
        if isinstance(output, Missing):
            found = _parsed("".join(unfinished)) if output.why is Why.TIMEOUT else output
            return Missing(output.why, "NVML", _where(output.detail, unfinished), output.remedy) if _no(found) else found
        if output.rc == 0:
            return _parsed(output.stdout)
        if output.rc > 0:
            last = output.stderr.strip().splitlines()[-1:] or ["no message"]
            return Missing(Why.FAILED, "NVML", f"the child that asks NVML ended with status {output.rc}: {brief(last[0], 200)}")
        call, what = _last_call(output.stdout), ended_by(output.rc)
        if "@-1" in call or not call or len(crashed) == _CRASHES or f"{call}={what}" in crashed:
            name = call.removesuffix("@-1").replace("@", " of GPU ")
            return Missing(Why.FAILED, "NVML", f"the NVIDIA library crashed: {what}" + (f" in {name}" if name else ""))
        crashed.append(f"{call}={what}")


def _no(found: Fact[Any]) -> bool:
    return isinstance(found, Missing)


def _last_call(text: str) -> str:
    """``call@gpu`` of the last mark, GPU -1 standing for the host; ``""`` without one.

    >>> _last_call("> nvmlInit@-1\\n> nvmlDeviceGetName@3\\n")
    'nvmlDeviceGetName@3'
    """
    marks = [line for line in text.splitlines() if line.startswith("> ")]
    return marks[-1][2:] if marks else ""


def _where(detail: str, unfinished: list[str]) -> str:
    call = _last_call("".join(unfinished)).removesuffix("@-1").replace("@", " of GPU ")
    return f"{detail}, in {call}" if call else detail


def _parsed(text: str) -> Fact[Any]:
    from torchtune_sys.model import codec

    lines = [line for line in text.splitlines() if line.startswith("{")]
    try:
        found = codec.loads(lines[-1] if lines else "")
    except ValueError as error:
        return Missing(Why.UNPARSED, "NVML", str(error))
    return found if isinstance(found, dict) else Missing(Why.UNPARSED, "NVML", "not an object")


def _nvidia_smi(timeout_s: float) -> Fact[Any]:
    from torchtune_sys.formats.nvidia_smi import complaints as nvidia_smi_complaints
    from torchtune_sys.formats.nvidia_smi import logs as nvidia_smi

    output = process.run(_SMI, timeout_s=timeout_s)
    if isinstance(output, Missing):
        return output
    if output.rc < 0:
        return Missing(Why.FAILED, "nvidia-smi", f"crashed: {ended_by(output.rc)}")
    found = nvidia_smi.parse_xml(output.stdout)
    if found is not None:
        return found
    complaint = nvidia_smi_complaints.parse_failure(output.stdout + output.stderr)
    if complaint is not None:
        return complaint
    words = (output.stdout + output.stderr).strip().splitlines()[:1] or ["nothing"]
    return Missing(Why.FAILED, "nvidia-smi", f"status {output.rc}, and it printed {brief(words[0], 100)!r}")
