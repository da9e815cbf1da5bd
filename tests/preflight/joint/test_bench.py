"""What ``./run bench faults`` makes of what a tool prints: whom it names, and nobody's own words of itself."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    found = spec_from_file_location("bench_faults", Path(__file__).parents[3] / "benchmarks/faults.py")
    assert found is not None and found.loader is not None
    module = module_from_spec(found)
    found.loader.exec_module(module)
    return module


FINE = dict.fromkeys((1, 2, 4), "trained")


@pytest.mark.parametrize(
    ("hung", "statuses", "said", "word"),
    [
        ([], [0, 0], {**FINE, 3: "trained"}, "silent: passes"),
        ([], [1, 0], {**FINE, 1: "RuntimeError: Connection closed by peer [10.78.0.3]:4711"}, "fails, named"),
        ([], [1, 0], {**FINE, 1: "error: n2 refused"}, "fails, names another"),
        ([], [1, 1], {1: "error on n1", 2: "error on n2", 3: "error on n3", 4: ""}, "fails, named"),
        ([], [1, 1], {1: "error: n2", 2: "", 3: "error: n3"}, "fails, names 2 hosts, the bad one among them"),
        ([], [1, 0], {1: "torch.distributed.DistStoreError: wait timeout"}, "fails, names nobody"),
        ([1, 2], [0, 0], {1: "step 3"}, "hung, names nobody"),
        ([1], [0, 0], {1: "Timed out waiting for rank: 2"}, "hung, named"),
    ],
)
def test_whom_a_tool_names(bench: ModuleType, hung: list[int], statuses: list[int], said: dict[int, str], word: str) -> None:
    assert bench._word("mtu", hung, statuses, said) == word
