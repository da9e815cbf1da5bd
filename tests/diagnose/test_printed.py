"""Lines as programs print them, each with the causes that it may stand for: written from the programs' sources and messages, in the
wordings of several releases, not from reports."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest

from conftest import exhaustive
from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.model.diagnosis import NamedCause

PRINTED = Path(__file__).with_name("printed.csv")
MESSAGES = Path(__file__).with_name("messages.csv")
HOST_MESSAGES = Path(__file__).with_name("host_messages.csv")
UNNAMED_MESSAGES = Path(__file__).with_name("unnamed_messages.csv")
FAMILY_MESSAGES = Path(__file__).with_name("family_messages.csv")
PASTED_MESSAGES = Path(__file__).with_name("pasted_messages.csv")
PASTED_TO_M = Path(__file__).with_name("pasted_messages_to_m.csv")
ERRNOS = Path(__file__).with_name("errnos.csv")
AROUND = "[2026-03-02 09:11:01,120] [INFO] [train.py:44] starting run r7\nstep 10 loss 2.3101\n{}\n[2026-03-02 09:11:05,882] [INFO] [train.py:88] done\n"


@pytest.mark.parametrize("first", [0, *exhaustive(1, 2)])
def test_each_line_stands_for_its_cause(first: int) -> None:
    rows = list(csv.DictReader(line for line in PRINTED.read_text().splitlines() if not line.startswith("#")))[first::3]
    wrong = {row["line"]: named for row in rows if (named := _first(row["line"])) not in row["causes"].split()}
    assert len(rows) > 300
    assert wrong == {}


@pytest.mark.essential
def test_messages_of_programs_stand_for_their_causes_in_a_log():
    """Every thirteenth: all of them take as long as the rest of the module. The share, and what is left: docs/diagnose-measured.md."""
    rows = list(csv.DictReader(line for line in MESSAGES.read_text().splitlines() if not line.startswith("#")))[::13]
    wrong = {
        row["line"]: named
        for row in rows
        if (named := _first(AROUND.format(row["line"]))) not in (row["left"] or row["causes"]).split()
    }
    assert len(rows) > 50
    assert wrong == {}


@pytest.mark.parametrize("path", [HOST_MESSAGES, UNNAMED_MESSAGES, FAMILY_MESSAGES, PASTED_TO_M])
@pytest.mark.parametrize("first", [0, *exhaustive(1, 2)])
def test_messages_about_the_host_stand_for_their_causes_in_a_log(path: Path, first: int) -> None:
    rows = list(csv.DictReader(line for line in path.read_text().splitlines() if not line.startswith("#")))[first::3]
    wrong = {
        row["line"]: named
        for row in rows
        if (named := _first(AROUND.format(row["line"]))) not in (row["left"] or row["causes"]).split()
    }
    assert len(rows) > 50
    assert wrong == {}


@pytest.mark.parametrize("first", [0, *exhaustive(1, 2)])
def test_messages_as_people_paste_them_stand_for_their_causes_and_tell_who(first: int) -> None:
    tried = list(csv.DictReader(line for line in PASTED_MESSAGES.read_text().splitlines() if not line.startswith("#")))[first::3]
    wrong = {
        row["line"]: (named, told)
        for row in tried
        for named, told in [_first_and_who(row["line"])]
        if named not in (row["left"] or row["causes"]).split()
        or (row["who"] and not row["left"] and told.isdisjoint(row["who"].split()))
    }
    assert len(tried) > 50
    assert wrong == {}


@pytest.mark.parametrize("first", [0, *exhaustive(*range(1, 6))])
def test_the_error_of_an_operation_decides(first: int) -> None:
    rows = list(csv.DictReader(line for line in ERRNOS.read_text().splitlines() if not line.startswith("#")))[first::6]
    wrong = {
        row["line"]: named
        for row in rows
        if (named := _first(AROUND.format(row["line"]))) not in (row["left"] or row["causes"]).split()
    }
    assert len(rows) > 20
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


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver",
        "PyTorch version: 2.9.0+cu128\nIs CUDA available: True\nCUDA used to build PyTorch: 12.8\n"
        "Nvidia driver version: 570.65.06\nGPU models and configuration: GPU 0: NVIDIA GeForce GTX 1080",
        "PyTorch version: 2.5.1+cu124\nIs CUDA available: False\nCUDA used to build PyTorch: 12.4\n"
        "Nvidia driver version: 470.82.01\nGPU models and configuration: GPU 0: NVIDIA A100-SXM4-80GB",
    ],
)
def test_a_remedy_names_what_to_install(text: str) -> None:
    [cause] = _causes(text)
    assert any(
        re.search(r"torch==\d+\.\d+\.\d+\+cu\d+|driver of \d{3}\.|>= 580\.|generate install picks one", fix) for fix in cause.fix
    )


def test_a_remedy_of_a_quoted_line_says_what_is_wanted() -> None:
    [cause] = _causes(
        "RuntimeError: The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver"
    )
    assert "580" in cause.fix[0] and "cu118" in cause.fix[1]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (
            "PermissionError: [Errno 13] Permission denied: '/s/.cache/torch_extensions/py311_cu121/fused_adam/lock'",
            "TORCH_EXTENSIONS_DIR",
        ),
        ("There are not enough slots available in the system to satisfy the 16", "slots=N"),
        ("ssh: connect to host n3 port 22: Connection timed out", "ping"),
    ],
)
def test_a_remedy_fits_the_very_thing_that_failed(line: str, words: str) -> None:
    assert words in _causes(line)[0].fix[0]


def _first(line: str) -> str:
    causes = _causes(line)
    return causes[0].cause if causes else "none"


def _first_and_who(line: str) -> tuple[str, set[str]]:
    """Return the first cause, and the ranks and hosts that are told of it."""
    causes = _causes(line)[:1]
    return (causes[0].cause if causes else "none"), {
        who for cause in causes for who in (*cause.hosts, *(f"rank{rank}" for rank in cause.ranks))
    }


def _causes(line: str) -> tuple[NamedCause, ...]:
    text = line.replace("\\n", "\n")
    return tuple(diagnose([InputText(name="x", excerpt=excerpt(io.BytesIO(text.encode())))]).causes)
