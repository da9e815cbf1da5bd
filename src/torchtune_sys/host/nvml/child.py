"""Ask NVML, in a process of its own: it may hang or crash, and must not crash the tool.

Run as a file under ``python -I``, with the time of CLOCK_MONOTONIC (seconds) at which it must be done, and the calls in which the library
crashed before (``nvmlDeviceGetName@3=SIGSEGV``). Prints a line ``> call@gpu`` before each call, and at its end one line of JSON, the shape of
``model.facts.gpu.GpuFacts``. A call that does not return costs its own facts: it is left to its thread, and another thread goes on.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))))

from torchtune_sys.host.nvml.calls import NvmlCalls, missing, refused
from torchtune_sys.host.nvml.links import peers
from torchtune_sys.host.nvml.readings import READINGS

_SHARE = 0.25
"""Of the time for all, that the first call on a GPU that does not return is waited for: attaching one may take seconds."""
_TIMEOUT_S = 1.0
"""For every later one."""
_POLL_S = 0.05
_NAMES = tuple(name for names, _ in READINGS for name in names)


class NvmlLook:
    """What has been read, and the step that comes next: (GPU, reading), -1 being its handle and the last its peers."""

    def __init__(self, nvml: Any, crashed: dict[str, str], limit: float) -> None:
        self.nvml, self.crashed = nvml, crashed
        self.limit = limit
        self.timeout_s = max(limit - time.monotonic(), 0.0) * _SHARE
        self.found: dict[str, Any] = {}
        self.devices: list[dict[str, Any]] = []
        self.handles: dict[int, Any] = {}
        self.peers: list[dict[str, Any]] = []
        self.steps: list[tuple[int, int]] = []
        self.position = 0
        self.ready = False
        self.done = threading.Event()
        self.lock = threading.Lock()
        self.reader = NvmlCalls(nvml, crashed)

    def begin(self) -> None:
        """Begin with the library and the host; then every GPU."""
        reader = self.reader
        reader.mark("nvmlInit")
        try:
            self.nvml.nvmlInit()
        except self.nvml.NVMLError as error:
            self._end(nothing(reader.refusal(error, "nvmlInit"), reader.name(error)))
            return
        self.found = {
            "driver_version": reader.call("nvmlSystemGetDriverVersion"),
            "library_version": reader.call("nvmlSystemGetNVMLVersion"),
            "cuda_driver_version": reader.call("nvmlSystemGetCudaDriverVersion_v2, nvmlSystemGetCudaDriverVersion", then=_cuda),
            "confidential": _confidential(reader),
        }
        count = reader.call("nvmlDeviceGetCount")
        if refused(count):
            self._end({**self.found, "devices": count})
            return
        self.devices = [{"index": index, "lost": False, "reset_required": False} for index in range(count)]
        last = len(READINGS)
        self.steps = [(gpu, step) for gpu in range(count) for step in range(-1, last)]
        self.steps += [(gpu, last) for gpu in range(count - 1)]
        self.ready = True
        self.go_on(reader)

    def _end(self, found: dict[str, Any]) -> None:
        self.found = found
        self.done.set()

    def go_on(self, reader: NvmlCalls) -> None:
        """Take one step after the other, until another thread has taken over."""
        while reader is self.reader and self.position < len(self.steps):
            gpu, step = self.steps[self.position]
            if gpu != reader.gpu:
                reader.turn_to(gpu)
            answer = self._ask(reader, gpu, step)
            with self.lock:
                if reader is not self.reader:
                    return  # given up meanwhile
                self.devices[gpu]["lost"] |= reader.lost
                self.devices[gpu]["reset_required"] |= reader.reset_required
                self._keep(gpu, step, answer)
        if reader is self.reader:
            self.done.set()

    def _ask(self, reader: NvmlCalls, gpu: int, step: int) -> Any:
        if step == -1:
            return reader.call("nvmlDeviceGetHandleByIndex", gpu)
        if gpu not in self.handles:
            return []
        return peers(reader, self.handles, gpu) if step == len(READINGS) else READINGS[step][1](reader, self.handles[gpu])

    def _keep(self, gpu: int, step: int, answer: Any) -> None:
        self.position += 1
        if step == len(READINGS):
            self.peers += answer
        elif step >= 0:
            self.devices[gpu].update(_named(READINGS[step][0], answer))
        elif not refused(answer):
            self.handles[gpu] = answer
        else:
            self.devices[gpu].update(dict.fromkeys(_NAMES, answer))
            self.position += len(READINGS)

    def give_up(self) -> None:
        """Give up the call in hand, which does not return: its facts are missing, and another thread takes the next step."""
        with self.lock:
            late = self.reader
            gpu, step = self.steps[self.position]
            answer = missing("timeout", late.at, f"{late.at} of GPU {gpu} did not return within {self.timeout_s:.3g} s")
            self._keep(gpu, step, [] if step == len(READINGS) else answer)
            self.reader = NvmlCalls(self.nvml, self.crashed, gpu)
            self.found.setdefault("hung", answer)
            self.timeout_s = min(self.timeout_s, _TIMEOUT_S)
        if not start(self.go_on, self.reader):
            self.limit = 0.0

    def wait(self) -> None:
        """Wait until all is read or the time is up."""
        while not self.done.wait(_POLL_S):
            now = time.monotonic()
            if now >= self.limit:
                return
            if self.ready and now - self.reader.since > self.timeout_s:
                self.give_up()

    def answer(self) -> dict[str, Any]:
        """Return what is known now; what was not reached in time is missing, with the call that took it."""
        with self.lock:
            ended, self.reader = self.reader, NvmlCalls(self.nvml, {})
        if "devices" in self.found:
            return self.found
        first = self.found.pop("hung", None)
        late = missing("timeout", ended.at, f"{ended.at} did not return in time")
        if not self.ready:
            return {**nothing(late, ""), **self.found}
        reason = first or late
        not_asked = missing("timeout", reason["source"], f"not asked in time: {reason['detail']}")
        for gpu in self.devices:
            for name in _NAMES:
                gpu.setdefault(name, not_asked)
        complete = self.done.is_set() and first is None
        self.found["p2p"] = (
            self.peers if complete or len(self.peers) == len(self.devices) * (len(self.devices) - 1) // 2 else reason
        )
        return {**self.found, "devices": self.devices}


def _named(names: tuple[str, ...], answer: Any) -> dict[str, Any]:
    if len(names) == 1:
        return {names[0]: answer}
    return dict.fromkeys(names, answer) if refused(answer) else dict(zip(names, answer, strict=True))


def start(work: Any, *args: Any) -> bool:
    """Do it in a thread; False where the session has no room for one."""
    try:
        threading.Thread(target=work, args=args, daemon=True).start()
    except RuntimeError:
        return False
    return True


def _confidential(reader: NvmlCalls) -> Any:
    """Whether the GPUs work under confidential computing, and then whether they accept work (nvml.h: NVML_CC_SYSTEM_FEATURE_ENABLED 1,
    NVML_CC_ACCEPTING_CLIENT_REQUESTS_TRUE 1)."""
    on = reader.call("nvmlSystemGetConfComputeState", then=lambda state: state.ccFeature == 1)
    if on is not True:
        return on if refused(on) else "off"
    return reader.call("nvmlSystemGetConfComputeGpusReadyState", then=lambda ready: "ready" if ready == 1 else "not-ready")


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"


def nothing(why: dict[str, str], error: str) -> dict[str, Any]:
    facts = ("driver_version", "library_version", "cuda_driver_version", "confidential", "devices", "p2p")
    return {**dict.fromkeys(facts, why), "error": error}


def look(limit: float, crashed: dict[str, str]) -> dict[str, Any]:
    """Look until the time ``limit`` of this host's monotonic clock, which the caller reads, too: a slow start is within it."""
    try:
        import pynvml
    except ImportError as error:
        return nothing(missing("no-tool", "pynvml", str(error), "install nvidia-ml-py"), "NO_BINDING")
    seen = NvmlLook(pynvml, crashed, limit)
    if start(seen.begin):
        seen.wait()
    else:
        seen.begin()
    return seen.answer()


if __name__ == "__main__":
    text = json.dumps(look(float(sys.argv[1]), dict(item.split("=", 1) for item in sys.argv[2:])))
    sys.stdout.write(text + "\n")
    sys.stdout.flush()
    os._exit(0)  # a thread may be in a call that never returns
