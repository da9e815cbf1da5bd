"""RDMA ports among their like, and the entries of RoCE ports, from both sides of each mark (rdma_entries)."""

from __future__ import annotations

from typing import Any

import pytest
from rdma_hosts import (
    LOCAL,
    NOTHING,
    REFUSED,
    TABLE,
    V4,
    gid,
    judged,
    replace,
    roce,
    verdict,
    words,
)

from torchtune_sys.model.values import Missing


@pytest.mark.parametrize(
    ("index", "said", "wanted"),
    [
        ("0", f"entry 0: IB/RoCE v1, {LOCAL}", "entry 3 (RoCE v2, 10.1.2.11)"),
        ("1", f"entry 1: link-local, {LOCAL}", "entry 3 (RoCE v2, 10.1.2.11)"),
        ("2", f"entry 2: IB/RoCE v1, {V4}", "entry 3 (RoCE v2, 10.1.2.11)"),
        ("3", "", ""),
        ("4", "entry 4: it is empty", "entry 3 (RoCE v2, 10.1.2.11)"),
        ("15", "entry 15: it is empty", "entry 3 (RoCE v2, 10.1.2.11)"),
        ("16", "", ""),  # beyond what was read
        ("-1", "", ""),
    ],
)
def test_entries_that_are_named(index: str, said: str, wanted: str) -> None:
    found = judged("roce-gid-index", roce(NCCL_IB_GID_INDEX=index)).evidence
    assert [(item.seen, item.wanted) for item in found] == ([(said, wanted)] if said else [])
    assert verdict("roce-gid-index", roce((gid(0, LOCAL, "IB/RoCE v1"),), NCCL_IB_GID_INDEX=index)) == "pass"


@pytest.mark.parametrize(
    ("release", "values", "expected"),
    [
        ("2.20.5", {}, "fail"),  # entry 0 then
        ("2.21.5", {}, "pass"),
        ("2.28.9", {"NCCL_IB_GID_INDEX": ""}, "pass"),
        ("2.20.5", {"NCCL_IB_GID_INDEX": "3"}, "pass"),
        ("2.28.9", {"NCCL_IB_GID_INDEX": "0"}, "fail"),
        (REFUSED, {}, "unknown"),
        (REFUSED, {"NCCL_IB_GID_INDEX": "0"}, "fail"),
        (REFUSED, {"NCCL_IB_GID_INDEX": "3"}, "pass"),
        (NOTHING, {}, "pass"),
        ("2.20.5", {"NCCL_IB_DISABLE": "1"}, "na"),
        ("2.20.5", {"NCCL_IB_HCA": "mlx5_0"}, "fail"),
        ("2.20.5", {"NCCL_IB_HCA": "mlx4"}, "na"),
    ],
)
def test_which_entry_each_release_takes(release: Any, values: dict[str, str], expected: str) -> None:
    host = roce(TABLE, release, **values)
    assert verdict("roce-gid-index", host) == expected
    assert all(text.startswith("entry 0") for text in words("roce-gid-index", host))


def test_an_interpreter_or_a_type_that_was_not_seen() -> None:
    host = roce()
    assert not isinstance(host.python, Missing)
    for unseen in (replace(host, python=REFUSED), replace(host, python=replace(host.python, torch=REFUSED))):
        assert verdict("roce-gid-index", unseen) == "unknown"
    unread = roce((gid(0, V4, REFUSED), gid(1)), NCCL_IB_GID_INDEX="0")
    assert verdict("roce-gid-index", unread) == "unknown"
    assert verdict("roce-gid-index", roce((gid(0, V4, NOTHING), gid(1)), NCCL_IB_GID_INDEX="0")) == "pass"


def test_the_first_entry_is_good_where_the_release_was_not_seen() -> None:
    assert verdict("roce-gid-index", roce((gid(0), gid(1, LOCAL)), REFUSED)) == "pass"
