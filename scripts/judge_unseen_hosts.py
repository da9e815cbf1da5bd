"""What `check --from` says of texts whose faults were written down first: ``python scripts/judge_unseen_hosts.py TABLE FOLDER``.

TABLE is tests/evidence/unseen_hosts.csv, FOLDER holds the texts, named by their sums; a text that is not there is left out. Prints what is
wrong with each and the counts; exits with 1 where a rule crashed or an error is wrong. Texts are no part of the repository.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torchtune_sys import engine
from torchtune_sys.cli.options import NO_INTENT
from torchtune_sys.cli.take_snapshot import look
from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.errors import UserError
from torchtune_sys.formats.nvidia_bug_report import EARLIER
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.model import codec
from torchtune_sys.model.rule import Result, Severity, Verdict
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.rules import CATALOGUE


def texts(table: Path, folder: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """Return the rows of which the text is there."""
    rows = csv.DictReader(line for line in table.read_text().splitlines() if not line.startswith("#"))
    for row in rows:
        for found in sorted(folder.glob(row["sum"] + "*")):
            yield row, found


def facts(text: Path) -> Snapshot:
    """Return what ``check --from`` reads of it. Raises UserError."""
    return look({**NO_INTENT, "from_": str(text), "root": None, "timeout": None})


def missing(must: str, failed: set[str]) -> list[str]:
    """Return the faults that no finding names.

    >>> missing("a|b;c", {"b"}), missing("none", set())
    (['c'], [])
    """
    wanted = [] if must == "none" else must.split(";")
    return [each for each in wanted if failed.isdisjoint(each.split("|")) and "none" not in each.split("|")]


def wrong(row: dict[str, str], found: list[Result]) -> list[Result]:
    """Return the errors that nobody expected."""
    expected = set(row["must"].replace(";", "|").split("|")) | set(row["may"].split("|"))
    return [
        result
        for result in found
        if result.rule.severity is Severity.ERROR and result.rule.id not in expected and f"*{result.rule.family}" not in expected
    ]


def unwanted(row: dict[str, str], found: list[Result]) -> list[Result]:
    """Return what must not be said of it: what ``never`` names, or every error and warning that nobody expected."""
    never = set((row["never"] or "").split("|"))
    expected = set(row["must"].replace(";", "|").split("|")) | set(row["may"].split("|"))
    return [
        result
        for result in found
        if result.rule.id in never
        or (
            ("*" in never and result.rule.severity is not Severity.ADVICE)
            and result.rule.id not in expected
            and f"*{result.rule.family}" not in expected
        )
    ]


def lost_fields(reads: str, seen: Snapshot) -> list[str]:
    """Return the fields that the snapshot has otherwise or not at all."""
    facts = codec.to_builtins(seen)
    return [field for field in (reads or "").split(";") if field and not _has(field, facts)]


def _has(field: str, facts: Any) -> bool:
    """Whether the facts hold a field.

    >>> [_has(field, {"cpu": {"online": "0-3", "names": ["a", "b"]}}) for field in ("cpu.online=0-3", "cpu.names#2", "cpu.names~b", "gpu.x~")]
    [True, True, True, False]
    """
    path, sign, wanted = re.split(r"([=~#])", field, maxsplit=1)
    for key in path.split("."):
        facts = facts.get(key, {}) if isinstance(facts, dict) else {}
    if facts == {} or (isinstance(facts, dict) and "$missing" in facts):
        return False
    if sign == "#":
        return isinstance(facts, list | tuple) and len(facts) == int(wanted)
    told = facts if isinstance(facts, str) else json.dumps(facts)
    return told.strip('"') == wanted if sign == "=" else wanted in told


def by_diagnose(must: str, text: Path) -> bool:
    """Whether ``diagnose`` names a cause that one of the rules in ``must``, or the label itself, stands for."""
    wanted = set(must.replace(";", "|").split("|"))
    wanted |= {rule.cause for rule in CATALOGUE if rule.id in wanted}
    data = text.read_bytes()[: 4 << 20]
    found = diagnose([InputText(name=text.name, excerpt=excerpt(io.BytesIO(data)))])
    return any(cause.cause in wanted for cause in found.causes)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--all", action="store_true", help="also what is as expected")
    args = parser.parse_args()
    count: Counter[str] = Counter()
    for row, text in texts(args.table, args.folder):
        count["texts"] += 1
        fields = len((row["reads"] or "").split(";")) if row["reads"] else 0
        count["fields"] += fields
        started = time.process_time()
        try:
            seen = facts(text)
        except UserError as error:
            count["not read"] += 1
            print(f"{row['sum']} {row['source']} {row['path'][-40:]} NOT READ: {str(error)[:160]}")
            count["lost fields"] += fields
            if row["must"] != "none":
                count["named by diagnose" if by_diagnose(row["must"], text) else "missed"] += 1
            continue
        results = engine.judge(seen, CATALOGUE)
        spent = time.process_time() - started
        found = [result for result in results if result.verdict is Verdict.FAIL]
        crashed = [result.rule.id for result in results if result.verdict is Verdict.CRASHED]
        lost, bad = missing(row["must"], {result.rule.id for result in found}), wrong(row, found)
        never, gone = unwanted(row, found), lost_fields(row["reads"], seen)
        count["crashed"] += bool(crashed)
        if lost and any(line.startswith(EARLIER) for line in seen.failures):
            count["said of an earlier boot"] += 1
        elif lost:
            count["named by diagnose" if by_diagnose(row["must"], text) else "missed"] += 1
        count["faults named"] += row["must"] != "none" and not lost
        count["wrong errors"] += bool(bad)
        count["unwanted"] += bool(never)
        count["lost fields"] += len(gone)
        count["slow"] += spent > 5
        if args.all or crashed or lost or bad or never or gone or spent > 5:
            print(f"{row['sum']} {row['source']} {row['path'][-40:]} {spent:.1f} s")
            for name, values in (("crashed", crashed), ("missed", lost), ("lost", gone)):
                if values:
                    print(f"    {name}: {', '.join(values)}")
            for result in bad or never:
                item = result.evidence[0]
                print(f"    WRONG: {result.rule.id}: {item.subject}: {item.seen} ({item.source})")
            if args.all:
                for result in found:
                    item = result.evidence[0]
                    print(f"    {result.rule.severity.name[0]} {result.rule.id}: {item.subject}: {item.seen[:120]}")
    print(", ".join(f"{name} {number}" for name, number in count.items()))
    return 1 if count["crashed"] or count["wrong errors"] else 0


if __name__ == "__main__":
    sys.exit(main())
