"""The GPUs: NVML in a child process, or, where its library cannot be loaded, what nvidia-smi prints."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from torchtune_sys.host import process
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_CHILD = os.path.join(os.path.dirname(os.path.dirname(__file__)), "nvml_child.py")
_SMI = ("nvidia-smi", "-q", "-x")


def nvml(_argument: str, timeout_s: float) -> Fact[Any]:
    """Plain JSON data in the shape of ``GpuFacts``."""
    started = time.monotonic()
    env = {**os.environ, "LC_ALL": "C"}
    output = process.run((sys.executable, "-I", _CHILD), timeout_s=timeout_s, env=env)
    if isinstance(output, Missing):
        return Missing(output.why, "NVML", output.detail, output.remedy)
    found = _parsed(output.rc, output.stdout, output.stderr)
    if isinstance(found, Missing) or found.get("error") not in ("LIBRARY_NOT_FOUND", "NO_BINDING"):
        return found
    other = _nvidia_smi(timeout_s - (time.monotonic() - started), env)
    return found if isinstance(other, Missing) and other.why is Why.NO_TOOL else other


def _parsed(rc: int, stdout: str, stderr: str) -> Any:
    from torchtune_sys.model import codec

    if rc < 0:
        return Missing(Why.FAILED, "NVML", f"the NVIDIA library crashed: {_signal(-rc)}")
    if rc != 0:
        last = stderr.strip().splitlines()[-1:] or ["no message"]
        return Missing(Why.FAILED, "NVML", f"the child that asks NVML ended with status {rc}: {last[0][:200]}")
    try:
        found = codec.loads(stdout)
    except ValueError as error:
        return Missing(Why.UNPARSED, "NVML", str(error))
    return found if isinstance(found, dict) else Missing(Why.UNPARSED, "NVML", "not an object")


def _nvidia_smi(timeout_s: float, env: dict[str, str]) -> Fact[Any]:
    from torchtune_sys.host import nvidia_smi, nvidia_smi_complaints

    output = process.run(_SMI, timeout_s=timeout_s, env=env)
    if isinstance(output, Missing):
        return output
    if output.rc < 0:
        return Missing(Why.FAILED, "nvidia-smi", f"crashed: {_signal(-output.rc)}")
    found = nvidia_smi.parse_xml(output.stdout)
    if found is not None:
        return found
    complaint = nvidia_smi_complaints.parse_failure(output.stdout + output.stderr)
    if complaint is not None:
        return complaint
    words = (output.stdout + output.stderr).strip().splitlines()[:1] or ["nothing"]
    return Missing(Why.FAILED, "nvidia-smi", f"status {output.rc}, and it printed {words[0][:100]!r}")


def _signal(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
