"""The handler of SIGCHLD, while a loader fails and afterwards."""

from __future__ import annotations

import pytest

from smoke.faults.forked import said

TRIAL = """
import signal
told = []
signal.signal(signal.SIGCHLD, lambda *given: told.append(given))
own = signal.getsignal(signal.SIGCHLD)
def failed():
    with reasons_are_kept():
        {ends}
try:
    failed()
except Exception as error:
    print(type(error).__name__)
print(signal.getsignal(signal.SIGCHLD) is own)
again = {again}
print(signal.getsignal(signal.SIGCHLD) is own)
"""


@pytest.mark.parametrize(
    ("ends", "again", "wanted"),
    [
        pytest.param("raise RuntimeError('worker')", "None", "RuntimeError\nFalse\nFalse", id="none while a loader's failure is told"),
        pytest.param("raise RuntimeError('worker')", "children_tell_again()", "RuntimeError\nFalse\nTrue", id="put back by the next stage"),
        pytest.param("raise KeyError('other')", "children_tell_again()", "KeyError\nFalse\nTrue", id="whatever failed"),
        pytest.param("pass", "children_tell_again()", "True\nTrue", id="untouched where nothing failed"),
        pytest.param("raise RuntimeError('worker')", "[failed_again(), children_tell_again()]", "RuntimeError\nFalse\nTrue", id="two failures"),
    ],
)  # fmt: skip
def test_the_handler_of_ended_children_comes_back(ends: str, again: str, wanted: str) -> None:
    twice = """
def failed_again():
    try:
        failed()
    except RuntimeError:
        pass
"""
    assert said(twice + TRIAL.format(ends=ends, again=again)).strip() == wanted


def test_each_stage_begins_with_the_handler_that_was_there() -> None:
    """A loader that fails in one stage, and the next stage."""
    assert (
        said(
            """
            import signal
            channel.tell = lambda *what, **more: None
            here = RankContext(level="quick", scratch=".", device="cpu", backend="gloo", expected={})
            signal.signal(signal.SIGCHLD, lambda *given: None)
            own = signal.getsignal(signal.SIGCHLD)
            def fails(_here):
                with reasons_are_kept():
                    raise RuntimeError("DataLoader worker (pid 1) exited unexpectedly")
            seen = []
            for run in (fails, lambda _here: seen.append(signal.getsignal(signal.SIGCHLD) is own)):
                seen.append(outcome(here, Stage("dataloader", run))["verdict"])
            print(seen)
            """
        ).strip()
        == "['fail', True, 'pass']"
    )
