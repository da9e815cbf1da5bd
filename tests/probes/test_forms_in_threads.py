"""Probes run in threads, and those of two families may be the first to read one form at the same moment."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import threading, time
import msgspec
from torchtune_sys.model import codec

begun = threading.Event()

def slowly():
    begun.set()
    time.sleep(0.3)
    return int

class Inner(msgspec.Struct):
    number: "slowly()"  # evaluated while the form that holds this one is described

class Outer(msgspec.Struct):
    inner: Inner
    last: int

DATA = {"inner": {"number": 1}, "last": 2}
first = threading.Thread(target=codec.convert, args=(DATA, Outer))
first.start()
begun.wait(10)
print(codec.convert(DATA, Outer).last)
first.join()
"""


def test_two_threads_may_be_the_first_to_read_one_form() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr  # -11 with msgspec.convert
