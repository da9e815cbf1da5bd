"""What is odd and breaks nothing: others' work that comes and goes, clocks that began elsewhere, other words and other places."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from smoke.faults.bench import Bench
from smoke.faults.means import unshared, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row

_COMES_AND_GOES = """
import time
while True:
    until = time.monotonic() + 1
    while time.monotonic() < until:
        pass
    time.sleep(1)
"""
_COPIES = """
given, taken = bytearray(1 << 26), bytearray(1 << 26)
while True:
    taken[:] = given
"""


def beside(text: str, count: int) -> Inject:
    """Others run this Python."""

    def inject(bench: Bench) -> None:
        for _ in range(count):
            other = subprocess.Popen([sys.executable, "-c", text])
            bench.closing.callback(other.wait)
            bench.closing.callback(other.kill)

    return inject


def odd_place(bench: Bench) -> None:
    place = bench.folder / "Läufe und Proben (1)"
    place.mkdir()
    bench.env["TMPDIR"] = str(place)


_WAYS: Mapping[str, tuple[str, str, Inject]] = {
    "load-comes-and-goes": ("Four other processes compute for a second in every two", "environment", beside(_COMES_AND_GOES, 4)),
    "memory-is-busy": ("Two other processes copy 64 MB all the time", "environment", beside(_COPIES, 2)),
    "clock-began-elsewhere": ("A container's clock of the time since the start began a day later", "namespace", unshared("--time --fork --monotonic 86400 --boottime 86400", ":")),
    "posix-words": ("The locale is C, and Python's UTF-8 mode is off", "environment", variables(LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")),
    "odd-place": ("Temporary files lie where the path has spaces, brackets and an umlaut", "environment", odd_place),
    "faults-are-told": ("Python tells where it crashes and does not buffer", "environment", variables(PYTHONFAULTHANDLER="1", PYTHONUNBUFFERED="1")),
}  # fmt: skip

_TOLD: Mapping[str, tuple[str, str]] = {"posix-words": ("device", "stdout-encoding")}
"""What ends a training at the first sign that is none of ASCII's is told."""

ROWS: tuple[Fault, ...] = tuple(
    row(name, what, *_TOLD.get(name, ("", "")), inject=inject, means=means, stages="")
    for name, (what, means, inject) in _WAYS.items()
)
