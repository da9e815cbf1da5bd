"""Every remedy of the tables is an instruction: it begins with what is to be done."""

from __future__ import annotations

import re

import pytest

from torchtune_sys.knowledge import tables

COLUMNS = {
    "causes": "fix",
    "family_causes": "fix",
    "operation_errors": "remedy",
    "sentences": "remedy",
    "smoke_fixes": "fix",
    "stated_causes": "fix",
    "xid": "todo",
}
VERBS = """
    activate add allow ask blacklist boot bring build call cast catch change check compare compile conda cool copy correct create define delete detach
    disable do download drain empty enable end enrol exclude export find fix free git give have ignore import install ip keep kill leave let link list load look
    loosen make map match mend modprobe mount move name open pad pass pin pip plug point power-cycle print put raise read reach reboot rebuild reduce reinstall
    remove rename replace report reseat reset restart rmmod run rustup see select set start stop submit sudo switch synchronise sysctl
    systemctl take test try turn ulimit uninstall unset update use wait wsl write
"""
"""Imperatives, and commands that change something and can be pasted. A command that only shows something follows "run" or "read", with what to
do with its answer."""
TELEGRAM = re.compile(r"; (?:or )?(?:an? |the )?(?:newer|smaller|larger|longer|more|fewer|less)\b")
"""A later part of a remedy that leaves the verb out."""


@pytest.mark.parametrize(("name", "column"), COLUMNS.items())
def test_a_remedy_begins_with_what_to_do(name: str, column: str) -> None:
    words = VERBS.split()
    wrong = [text for row in tables.rows(name) if (text := row[column]) and text.split()[0].rstrip(",;:") not in words]
    assert not wrong, (
        "say first what is to be done (set NAME=…, install …, run COMMAND: …); a verb that is missing here belongs to VERBS"
    )


@pytest.mark.parametrize(("name", "column"), COLUMNS.items())
def test_no_later_part_leaves_its_verb_out(name: str, column: str) -> None:
    assert not [row[column] for row in tables.rows(name) if TELEGRAM.search(row[column])]
