"""Lines as programs print them, each with the causes that it may stand for: written from the programs' sources and messages, in the
wordings of several releases, not from reports."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.model.diagnosis import NamedCause

PRINTED = Path(__file__).with_name("printed.csv")


def test_each_line_stands_for_its_cause():
    rows = list(csv.DictReader(line for line in PRINTED.read_text().splitlines() if not line.startswith("#")))
    wrong = {row["line"]: named for row in rows if (named := _first(row["line"])) not in row["causes"].split()}
    assert len(rows) > 300
    assert wrong == {}


@pytest.mark.parametrize(
    ("line", "program"),
    [
        ("safetensors_rust.SafetensorError: Error while deserializing header: MetadataIncompleteBuffer", "safetensors"),
        ("RuntimeError: Internal: could not parse ModelProto from /models/tokenizer.model", "head"),
        ("tarfile.ReadError: unexpected end of data: checkpoint.tar", "tar"),
    ],
)
def test_what_confirms_a_damaged_file_reads_its_format(line: str, program: str) -> None:
    """``zipfile -t`` refuses each file of these formats, the good ones too."""
    cause = next(cause for cause in _causes(line) if cause.cause == "checkpoint-damaged")
    assert program in cause.confirm
    assert "zipfile" not in cause.confirm


def _first(line: str) -> str:
    causes = _causes(line)
    return causes[0].cause if causes else "none"


def _causes(line: str) -> tuple[NamedCause, ...]:
    text = line.replace("\\n", "\n")
    return tuple(diagnose([InputText(name="x", excerpt=excerpt(io.BytesIO(text.encode())))]).causes)
