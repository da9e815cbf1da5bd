"""Lines as programs print them, each with the causes that it may stand for: written from the programs' sources and messages, in the
wordings of several releases, not from reports."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt

PRINTED = Path(__file__).with_name("printed.csv")


def test_each_line_stands_for_its_cause():
    rows = list(csv.DictReader(line for line in PRINTED.read_text().splitlines() if not line.startswith("#")))
    wrong = {row["line"]: named for row in rows if (named := _first(row["line"])) not in row["causes"].split()}
    assert len(rows) > 300
    assert wrong == {}


def _first(line: str) -> str:
    text = line.replace("\\n", "\n")
    causes = diagnose([InputText(name="x", excerpt=excerpt(io.BytesIO(text.encode())))]).causes
    return causes[0].cause if causes else "none"
