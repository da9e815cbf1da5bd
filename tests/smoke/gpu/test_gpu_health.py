"""What the stage "stress" says of a GPU while it works: asked of a library with NVML's ABI, the log being a file. No result of a GPU is made up."""

from __future__ import annotations

import csv
import json
import re
import subprocess
from importlib.resources import files
from pathlib import Path

import pytest

from nvml.library import COMPILER, build
from smoke.faults.bench import torch_python
from torchtune_sys.smoke.script import source

pytestmark = [pytest.mark.long, pytest.mark.skipif(COMPILER is None, reason="no C compiler")]
UUID = "00000000-0000-0000-0000-000000000000"
"""Of the library's first GPU, which is at 0000:19:00.0."""
_WATCH = """
import json, os, sys
space = {"__name__": "examined"}
exec(compile(open(sys.argv[1]).read(), sys.argv[1], "exec"), space)
found = []
for before, after, logged, uuid in json.loads(sys.argv[2]):
    stub, log = os.environ["NVIDIA_STUB_FILE"], sys.argv[3]
    open(stub, "w").write(before)
    open(log, "w").write("4,1,1,-;NVRM: Xid (PCI:0000:19:00): 79, logged before\\n")
    child = os.fork()  # the library reads its answers once
    if child == 0:
        os.dup2(os.open(sys.argv[4], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        health = space["GpuHealth"](uuid, log if logged is not None else log + ".none")
        health.readings and [health.readings[0].update(after)]
        open(log, "a").write("".join("4,2,2,-;NVRM: Xid (PCI:%s): %s\\n" % tuple(one) for one in logged or ()))
        try:
            told = ["", health.judge()]
        except space["StageFailed"] as error:
            told = [error.cause or "by its text", error.seen]
        os.write(1, (json.dumps(told) + "\\n").encode())
        os._exit(0)
    os.waitpid(child, 0)
"""


def _watched(folder: Path, rows: list[list[object]]) -> list[list[str]]:
    """Each row: what the library answers, what it had answered before in its place, what the log gets (None: it cannot be read), of which GPU (the first)."""
    (folder / "smoke.py").write_text(source())
    answers = folder / "answers"
    asked = [row if len(row) == 4 else [*row, UUID] for row in rows]
    argv = [torch_python(), "-c", _WATCH, str(folder / "smoke.py"), json.dumps(asked), str(folder / "log"), str(answers)]
    env = {"LD_LIBRARY_PATH": str(build(folder / "nvml")), "NVIDIA_STUB_FILE": str(folder / "stub"), "PATH": "/usr/bin:/bin"}
    subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200, check=True)
    return [json.loads(line) for line in answers.read_text().splitlines()]


def test_what_a_gpu_does_under_load_is_told_and_what_it_cannot_correct_fails(tmp_path: Path) -> None:
    hot = "nvmlDeviceGetTemperature = 88\nnvmlDeviceGetClockInfo = 900\nnvmlDeviceGetCurrentClocksEventReasons = 0x44\n"
    counted = "nvmlDeviceGetTotalEccErrors.2 = 3\n"
    corrected = "nvmlDeviceGetTotalEccErrors.0 = 5\n"
    lost = ["0000:19:00", "79, pid=7, GPU has fallen off the bus."]
    found = _watched(
        tmp_path,
        [
            ["", {}, []],
            [hot, {"temperature": 41, "clock": 1980}, []],
            [counted, {"uncorrected": 0}, []],
            [counted, {}, []],
            [corrected, {"corrected": 1}, []],
            ["", {}, [lost]],
            ["", {}, [["0000:1a:00", lost[1]]]],
            ["", {}, [["00000000:19:00.0", "31, pid=7, MMU Fault"]]],
            ["", {}, None],
            ["nvmlDeviceGetPowerUsage = !3\nnvmlDeviceGetClockInfo = !3\n", {}, []],
            ["", {}, [], "ffffffff-0000-0000-0000-000000000000"],
        ],
    )
    healthy = "SM clock 1980 to 1980 MHz, 41 to 41 C, at most 310 W"
    assert found == [
        ["", f"under load: {healthy}, no Xid"],
        [
            "",
            "under load: SM clock 900 to 900 MHz, 41 to 88 C, at most 310 W, held back (clock event reasons 0x40: "
            "nvidia-smi -q -d PERFORMANCE), no Xid",
        ],
        ["gpu-ecc-uncorrectable", "the GPU counted 3 uncorrectable ECC errors under load"],
        ["", f"under load: {healthy}, no Xid"],  # as many as before
        ["", f"under load: {healthy}, 4 ECC errors corrected, no Xid"],
        ["by its text", f"the driver logged 1 fault(s) of this GPU under load: Xid {lost[1]}"],
        ["", f"under load: {healthy}, no Xid"],  # another GPU's
        ["", f"under load: {healthy}, Xid 31, pid=7, MMU Fault"],  # a program's own
        ["", f"under load: {healthy}, the kernel's log could not be read for Xids"],
        ["", "under load: 41 to 41 C, no Xid"],
        ["", ""],  # a GPU that the library does not know
    ]


def test_xids_that_fail_are_those_that_the_table_calls_faults_of_hardware() -> None:
    text = (files("torchtune_sys.smoke.worker") / "gpu_health.py").read_text()
    told = re.search(r"XIDS_OF_HARDWARE = frozenset\((.*?)\n\)", text, re.DOTALL)
    lines = (files("torchtune_sys.knowledge.data") / "xid.csv").read_text().splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    hardware = {int(row["xid"]) for row in rows if row["judged"] in ("gpu", "memory", "nvlink", "gsp", "lost")}
    assert told is not None and {int(number) for number in re.findall(r"\d+", told.group(1))} == hardware
