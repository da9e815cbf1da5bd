"""Every row of the tables that diagnose reads is whole: a comma in a pattern without quotes shifts the rest."""

from __future__ import annotations

import re

import pytest

from torchtune_sys.knowledge import tables
from torchtune_sys.knowledge.causes import cause_rows
from torchtune_sys.knowledge.messages.causes import families
from torchtune_sys.knowledge.operations import ERRORS
from torchtune_sys.knowledge.sentences import NEAR
from torchtune_sys.knowledge.stated_words import classes, filled

ROLES = ("cause", "hint", "consequence", "waited", "program", "inventory", "noise", "fact")


@pytest.mark.parametrize("row", tables.rows("sentences"), ids=lambda row: row["pattern"][:40])
def test_a_sentence_is_whole(row: dict[str, str]) -> None:
    columns = {"pattern", "cause", "role", "stage", "also", "unless", "rule", "remedy", "program", "source"}
    assert set(row) == columns and row["source"]
    assert row["role"] in ROLES and bool(row["cause"]) == (row["role"] not in ("consequence", "waited", "program", "noise"))
    assert row["role"] != "program" or row["remedy"]
    assert all(
        re.compile(part.removeprefix(NEAR)) for part in (row["pattern"], *row["also"].split(" && "), *row["unless"].split(" && "))
    )
    assert (row["role"] != "fact" or row["rule"]) and not (row["stage"] and row["rule"])
    assert row["stage"] or not [cause for cause in row["cause"].split("|") if cause and cause not in cause_rows()]


def test_each_operation_has_its_errors_and_each_error_its_operation() -> None:
    operations, errors = tables.rows("operations"), tables.rows("operation_errors")
    assert {row["operation"] for row in operations} == {name for row in errors for name in row["operation"].split("|")}
    assert all(row["source"] and re.compile(row["pattern"]) for row in operations)
    known = [(name, error) for row in errors for name in row["operation"].split("|") for error in row["errors"].split("|")]
    assert len(known) == len(set(known)) and {error for _, error in known} <= ERRORS.keys()
    assert all(row["role"] in ("cause", "hint") and row["source"] for row in errors)
    assert not [cause for row in errors for cause in row["cause"].split("|") if cause and cause not in cause_rows()]


def test_no_sentence_stands_there_twice() -> None:
    """The same words with the same condition have one row; in a stage they may mean something else."""
    seen = [(row["pattern"], row["also"], row["unless"], row["stage"]) for row in tables.rows("sentences")]
    assert len(seen) == len(set(seen))


def test_every_family_of_messages_has_its_causes() -> None:
    named = {row["family"] for row in tables.rows("message_families")}
    assert not [family for family in families() if family not in named]
    assert not [row for row in tables.rows("family_causes") if row["cause"] and row["cause"] not in cause_rows()]


CLASSES = classes()


@pytest.mark.parametrize(
    "row", tables.rows("stated_causes"), ids=lambda row: f"{row['cause']}-{row['subject'] or row['setting'] or row['claim']}"[:60]
)
def test_what_people_say_is_whole(row: dict[str, str]) -> None:
    said = ("subject", "fault", "help", "setting", "claim")
    assert set(row) == {"cause", *said, "alone", "also", "unless", "fix", "source"} and row["source"]
    assert (
        any(row[part] for part in said)
        and row["alone"] in ("", "y")
        and (row["subject"] or not (row["fault"] or row["help"] or row["alone"]))
    )
    assert not any(re.compile(filled(row[part], CLASSES)).groups for part in (*said, "also", "unless")), (
        "groups take the place of the gap"
    )
    assert not [cause for cause in row["cause"].split("|") if cause not in cause_rows()]


def test_each_class_of_words_is_used() -> None:
    rows = (*tables.rows("stated_causes"), *tables.rows("told_states"), *tables.rows("told_symptoms"))
    text = "".join("".join(row.values()) for row in rows)
    assert not [name for name in CLASSES if f"{{{name}}}" not in text]
