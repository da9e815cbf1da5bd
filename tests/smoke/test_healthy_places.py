"""What is odd in a place but no fault there: a file system that is mounted without locks, GPUs whose switches add up in any order."""

from __future__ import annotations

from smoke.faults.forked import said

LOCKS = """
import errno, types
real = fcntl.flock
def refused(file, how):
    if not isinstance(file, int):
        raise OSError(number, os.strerror(number))
    real(file, how)
with tempfile.TemporaryDirectory() as folder:
    locks_hold(types.SimpleNamespace(remark=""), folder)
    fcntl.flock = refused
    for number in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EIO):
        here = types.SimpleNamespace(remark="")
        try:
            locks_hold(here, folder)
            print("cannot be locked" in here.remark)
        except StageFailed as failed:
            print(failed.cause)
"""
SUMS = """
import itertools, types
dist.barrier = lambda: None
keeps_nothing_of = lambda here, what, exchanged, count: [exchanged() for _ in range(3)]
unlike = lambda *_: []
for kind, error in (("cpu", 1e-7), ("cuda", 1e-7), ("cuda", 1e-3), ("cuda", float("nan"))):
    turns = itertools.count()
    dist.all_reduce = lambda held: held.add_(0.5).add_(error * next(turns))
    here = types.SimpleNamespace(kind=kind, device=torch.device("cpu"), rank=0, world=2)
    print([cause for cause, _ in repeated_exchanges(here)])
"""


def test_a_file_system_without_locks_is_a_remark_and_one_that_fails_a_fault() -> None:
    assert said(LOCKS).splitlines() == ["True", "True", "True", "filesystem-without-locks"]


def test_sums_on_gpus_may_be_rounded_otherwise_each_time() -> None:
    assert said(SUMS).splitlines() == ["['collective-wrong']", "[]", "['collective-wrong']", "['collective-wrong']"]
