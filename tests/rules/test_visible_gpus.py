"""One reading of CUDA_VISIBLE_DEVICES for all: which GPUs it shows, in whose numbers, and why it hides some."""

from __future__ import annotations

from typing import Any

import pytest
from altered import altered, with_env
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from conftest import judge_one, load
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import need
from torchtune_sys.model.visible_gpus import left_out, listed
from torchtune_sys.remediation.placement.gpus import visible
from torchtune_sys.rules.torch.common import displays_beside

UUIDS = ("GPU-aaaa1111-0000", "GPU-aaaa2222-0000", "GPU-bbbb3333-0000")
UNTOLD = ("", "", "")
EMPTY, EVERY, REST = "hides every GPU", ": every GPU is hidden", ": it and what follows is hidden"


@pytest.mark.parametrize(
    ("value", "uuids", "shown", "fault"),
    [
        # Numbers, as torch.cuda._parse_visible_devices of 2.13 reads each of these.
        ("0", UNTOLD, (0,), ""),
        ("2,1,0", UNTOLD, (2, 1, 0), ""),
        (" 0 , 2", UNTOLD, (0, 2), ""),
        ("+1", UNTOLD, (1,), ""),
        ("0+,1x", UNTOLD, (0, 1), ""),
        ("0,3,1", UNTOLD, (0,), "there is no GPU 3" + REST),
        ("3", UNTOLD, (), "there is no GPU 3" + EVERY),
        ("9" * 5000, UNTOLD, (), "there is no GPU 9999"),
        ("0,-1,1", UNTOLD, (0,), "-1 is no number" + REST),
        ("0,,1", UNTOLD, (0,), "an empty entry is no number" + REST),
        ("0,1,", UNTOLD, (0, 1), ""),
        (",", UNTOLD, (), ", is no number" + EVERY),
        (",0", UNTOLD, (), "an empty entry is no number" + EVERY),
        ("++1", UNTOLD, (), "++1 is no number" + EVERY),
        ("cuda:0", UNTOLD, (), "cuda:0 is no number" + EVERY),
        ("all", UNTOLD, (), "is no number" + EVERY),
        ("0,0", UNTOLD, (), "0 is named twice, which hides every GPU"),
        ("00,0", UNTOLD, (), "0 is named twice, which hides every GPU"),
        ("0,1,7,0", UNTOLD, (0, 1), "there is no GPU 7" + REST),
        ("0,GPU-aaaa1", UUIDS, (0,), "GPU-aaaa1 is no number" + REST),
        *((value, UNTOLD, (), EMPTY) for value in ("", " ", "-1", "NoDevFiles")),
        # UUIDs, as far as they are told apart.
        ("GPU-bbbb3333-0000", UUIDS, (2,), ""),
        ("gpu-BBBB", UUIDS, (2,), ""),
        ("GPU-bbbb,GPU-aaaa1", UUIDS, (2, 0), ""),
        ("GPU-aaaa", UUIDS, (), "2 GPUs have a UUID that begins with GPU-aaaa" + EVERY),
        ("GPU-cccc", UUIDS, (), "no GPU has the UUID GPU-cccc" + EVERY),
        ("GPU-bbbb,GPU-cccc,GPU-aaaa1", UUIDS, (2,), "no GPU has the UUID GPU-cccc" + REST),
        ("GPU-bbbb,0", UUIDS, (2,), "0 is no UUID" + REST),
        ("GPU-bbbb,,", UUIDS, (2,), ""),
        ("GPU-bbbb,MIG-1", UUIDS, (2,), "MIG-1 is no UUID" + REST),
        ("GPU-bbbb,GPU-bbbb", UUIDS, (), "GPU-bbbb is named twice, which hides every GPU"),
        ("GPU-cccc", UNTOLD, (None,), ""),
        ("GPU-cccc", (*UUIDS[:2], ""), (None,), ""),
        # MIG: an instance's UUID does not tell its GPU, and its older name does.
        ("MIG-123", UUIDS, (None,), ""),
        ("MIG-123", UUIDS[:1], (0,), ""),
        ("MIG-GPU-bbbb3333-0000/1/0", UUIDS, (2,), ""),
        ("MIG-123,0", UUIDS, (None,), "0 is no MIG instance" + REST),
        ("MIG-1,MIG-1", UUIDS, (), "MIG-1 is named twice, which hides every GPU"),
    ],
)
def test_what_a_list_shows_and_why_it_hides(
    value: str, uuids: tuple[str, ...], shown: tuple[int | None, ...], fault: str
) -> None:
    found = listed(value, uuids)
    assert found.places == shown and bool(found.fault) == bool(fault) and fault in found.fault


def test_numbers_beyond_the_gpus_are_instances_where_mig_is_on() -> None:
    assert listed("5,0", UUIDS, sliced=True).places == (None, 0)


@given(st.text(), st.booleans())
def test_any_value_is_read(value: str, sliced: bool) -> None:
    found = listed(value, UUIDS, sliced)
    assert len(found.places) == len(found.names) == len({*found.names})


def _three(names: tuple[str, ...] = ("A", "A", "A"), **env: str) -> Snapshot:
    """Three GPUs with UUIDS, in the order of the bus: NVML's 0, 1, 2."""
    seen = load("base-single-gpu")
    model = need(need(seen.gpu).devices)[0]
    addresses = ("0000:1b:00.0", "0000:2b:00.0", "0000:3b:00.0")
    cards = tuple(
        replace(model, index=place, name=names[place], uuid=UUIDS[place], pci_address=addresses[place]) for place in range(3)
    )
    return with_env(altered(seen, gpu__devices=cards), env)


@pytest.mark.parametrize(
    ("env", "hidden"),
    [
        ({}, ()),
        ({"CUDA_VISIBLE_DEVICES": "0,2"}, (1,)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bbbb"}, (0, 1)),
        ({"CUDA_VISIBLE_DEVICES": "0,9,1"}, (1, 2)),
        ({"CUDA_VISIBLE_DEVICES": "GPU-cccc"}, (0, 1, 2)),  # none has that UUID, so none is shown
        ({"CUDA_VISIBLE_DEVICES": ""}, (0, 1, 2)),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1234"}, ()),  # of one of the three, nobody knows which
    ],
)
def test_rules_leave_out_what_the_list_hides_and_ranks_are_placed_on_the_rest(env: dict[str, str], hidden: Any) -> None:
    seen = _three(**env)
    gpus = need(need(seen.gpu).devices)
    assert tuple(sorted(left_out(seen))) == hidden
    prohibited = altered(seen, gpu__devices=tuple(replace(gpu, compute_mode="prohibited") for gpu in gpus))
    told = judge_one(prohibited, "compute-mode-prohibited").evidence
    assert sum(item.verdict is Verdict.FAIL for item in told) == 3 - len(hidden)
    if "MIG" not in str(env):
        placed = visible(seen, ()).addresses
        assert {*placed} == {gpu.pci_address for gpu in gpus if gpu.index not in hidden}


def test_numbers_of_several_models_are_cudas_own() -> None:
    """The fastest comes first, and which that is was not seen: what may be hidden is not judged, and only a whole list hides none."""
    models = ("GT 1030", "RTX 4090", "RTX 4090")
    for value, order, hidden in (
        ("0", "", (0, 1, 2)),
        ("0,1,2", "", ()),
        ("0", "PCI_BUS_ID", (1, 2)),
        ("GPU-bbbb", "", (0, 1)),
    ):
        seen = _three(models, CUDA_VISIBLE_DEVICES=value, CUDA_DEVICE_ORDER=order)
        assert tuple(sorted(left_out(seen))) == hidden, value


@pytest.mark.parametrize(
    ("env", "alone"),
    [
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, True),  # from the fastest: the two that one trains on
        ({"CUDA_VISIBLE_DEVICES": "0,1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, False),
        ({"CUDA_VISIBLE_DEVICES": "1,2", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, True),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aaaa2,GPU-bbbb"}, True),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aaaa1"}, False),
        ({"CUDA_VISIBLE_DEVICES": "GPU-cccc"}, False),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1"}, False),
        ({}, False),
    ],
)
def test_a_display_card_beside_those_that_one_trains_on(env: dict[str, str], alone: bool) -> None:
    seen = _three(("GT 1030", "RTX 4090", "RTX 4090"), **env)
    assert displays_beside(seen, need(need(seen.gpu).devices)[1:]).all_others is alone
