"""Every row of the tables that diagnose reads is whole: a comma in a pattern without quotes shifts the rest."""

from __future__ import annotations

import re

import pytest

from torchtune_sys.knowledge import tables
from torchtune_sys.knowledge.messages.causes import families
from torchtune_sys.knowledge.signatures import cause_rows

ROLES = ("cause", "hint", "consequence", "inventory", "noise")


@pytest.mark.parametrize("row", tables.rows("signatures"), ids=lambda row: row["pattern"][:40])
def test_a_signature_is_whole(row: dict[str, str]) -> None:
    assert set(row) == {"pattern", "cause", "role", "also", "unless", "program", "source"} and row["source"]
    assert row["role"] in ROLES and bool(row["cause"]) == (row["role"] not in ("consequence", "noise"))
    assert all(re.compile(part) for part in (row["pattern"], *row["also"].split(" && "), row["unless"]))
    assert not [cause for cause in row["cause"].split("|") if cause and cause not in cause_rows()]


def test_every_family_of_messages_has_its_causes() -> None:
    named = {row["family"] for row in tables.rows("message_families")}
    assert not [family for family in families() if family not in named]
    assert not [row for row in tables.rows("family_causes") if row["cause"] and row["cause"] not in cause_rows()]
