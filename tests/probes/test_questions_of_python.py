"""What the live machine answers about files that would be imported, packages of torch that are gone, and the way to a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from torchtune_sys.formats.python_modules import PARTS_OF_TORCH
from torchtune_sys.host import queries
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.network import probe as network
from torchtune_sys.probes.python import probe as python


def made(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return folder


def test_what_would_be_imported_in_place_of_a_module(tmp_path: Path) -> None:
    made(tmp_path, "random.py", "sympy.py", "train.py", "test.py", "queue/data.txt", "sympy/__init__.py")
    made(tmp_path, "torch/__init__.py", "numpy/__init__.py", "numpy/version.py", "types/__init__.py")
    answer = LiveHost().ask(f"{queries.MODULE_FILES}:{tmp_path}")
    assert answer == ["random.py", "sympy.py", "torch/__init__.py", "types/__init__.py"]
    assert LiveHost().ask(f"{queries.MODULE_FILES}:{tmp_path}/none").why is Why.ABSENT


def test_parts_of_torch_that_are_gone(tmp_path: Path) -> None:
    made(tmp_path, *(f"{name}/__init__.py" for name in PARTS_OF_TORCH if name not in ("nn", "optim")))
    assert LiveHost().ask(f"{queries.LOST_PARTS}:{tmp_path}") == ["nn", "optim"]
    assert LiveHost().ask(f"{queries.LOST_PARTS}:{tmp_path}/none") == []


def test_the_way_to_an_address() -> None:
    """198.51.100.0/24 is for documentation; whether this machine has a route there is its own affair."""
    host = LiveHost()
    assert host.ask(f"{queries.WAY_TO}:127.0.0.1") == {"addresses": ["127.0.0.1"], "refused": [""], "own": ["127.0.0.1"]}
    assert set(host.ask(f"{queries.WAY_TO}:198.51.100.7")) == {"addresses", "refused", "own"}
    assert isinstance(host.ask(f"{queries.WAY_TO}:10.9.0.5:29500"), Missing)


@pytest.mark.parametrize(
    "answer", [{}, [], {"addresses": ["10.0.0.4"], "refused": [], "own": []}, {"addresses": 3, "refused": 4, "own": 5}, "x"]
)
def test_an_answer_may_be_anything(answer: object) -> None:
    host = RecordedHost({"env": {"MASTER_ADDR": "node0"}, "answers": {f"{queries.WAY_TO}:node0": answer}}, "test")
    found = network.master(host)
    assert isinstance(found, Missing) and found.why is Why.UNPARSED


def test_a_recording_of_an_earlier_release_is_not_taken_for_one_where_nothing_resolves() -> None:
    found = network.master(RecordedHost({"env": {"MASTER_ADDR": "node0"}}, "test"))
    assert isinstance(found, Missing) and found.why is Why.NOT_RECORDED
    seen = python.probe(RecordedHost({"answers": {"cwd": "/w"}}, "test"), Workload())
    assert seen.lost_parts == () and isinstance(seen.hiding_here, Missing)
