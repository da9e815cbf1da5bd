"""What the test changes of Python and gives back: the handler of SIGCHLD while a loader fails, the collector of cycles while torch is imported."""

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


IMPORTED = """
import gc
def told():
    return gc.isenabled(), gc.get_threshold()[0]
gc.set_threshold(600)
{before}
try:
    with without_collections():
        done = gc.get_stats()[0]["collections"]
        held = [[] for _ in range(100000)]
        came = gc.get_stats()[0]["collections"] - done
        {loaded}
except ImportError:
    print("failed")
print(came, *told(), gc.get_freeze_count() > 100000)
"""


@pytest.mark.parametrize(
    ("before", "loaded", "wanted"),
    [
        pytest.param("", "pass", "0 True 600 True", id="comes again"),
        pytest.param("", "raise ImportError", "failed\n0 True 600 True", id="where the import fails half way, too"),
        pytest.param("gc.disable()", "pass", "0 False 600 True", id="stays off where it was"),
        pytest.param("", "gc.disable()", "0 False 600 True", id="stays off where what is imported switched it off"),
        pytest.param("", "gc.set_threshold(50)", "0 True 50 True", id="comes as often as what is imported says"),
        pytest.param("gc.set_threshold(0)", "pass", "0 True 0 True", id="never, where it never came"),
    ],
)
def test_the_collector_comes_as_it_would_have_without_the_test(before: str, loaded: str, wanted: str) -> None:
    assert said(IMPORTED.format(before=before, loaded=loaded)) == wanted + "\n"
