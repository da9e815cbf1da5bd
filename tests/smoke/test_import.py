"""Python's collector of cycles while torch is imported."""

from __future__ import annotations

import pytest

from smoke.faults.forked import said

TRIAL = """
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
    assert said(TRIAL.format(before=before, loaded=loaded)) == wanted + "\n"
