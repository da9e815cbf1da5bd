"""This tool's own documents, YAML by strict readers, secrets of tools of 2025 and 2026."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from msgspec.structs import replace
from outputs import said

from conftest import load
from fuzz.forms_of_secrets import newer_tools
from fuzz.test_words_for_copying import written
from torchtune_sys import engine
from torchtune_sys.host.live import LiveHost
from torchtune_sys.host.recorded import RecordedHost
from torchtune_sys.host.secrets.filter import scrubbed
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing
from torchtune_sys.probes import proof
from torchtune_sys.probes.python.probe import parse_torch
from torchtune_sys.probes.storage import probe as storage
from torchtune_sys.rules import by_id


@pytest.mark.sampled(20)
@pytest.mark.parametrize("row", newer_tools.ALL, ids=lambda row: row[0])
def test_a_secret_of_a_newer_tool(row: tuple[str, str, str]) -> None:
    _name, text, secret = row
    plain = text.replace("@", secret, 1).replace("%", "@")
    assert [told for form in written(plain) if secret in (told := scrubbed(form))] == []


@pytest.mark.parametrize(
    "said",
    [
        "your password is: correcthorse7battery",
        "The API key is: q8zr1vt5nb3xw7yk",
        "the new root password was set to: correcthorse7battery",
        "Access token is 'q8zr1vt5'",
    ],
)
def test_a_secret_that_a_sentence_tells_is_hidden(said: str) -> None:
    assert said.split()[-1].strip("'") not in scrubbed(said)


@pytest.mark.parametrize("said", ["the pad token is: <pad>", "password is required", "the password is: "])
def test_a_sentence_without_a_secret_stays(said: str) -> None:
    assert scrubbed(said) == said


def strings(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [found for each in value.values() for found in strings(each)]
    return [found for each in value for found in strings(each)] if isinstance(value, list) else [value]


@pytest.mark.parametrize(
    "word", ["\U0001f600", "yes", "1e3", "a\nb: c", "a\u0085b", "\u2028", "\x7f", "<<", "!!python/object:x", "\t"]
)
def test_a_word_of_the_training_is_the_same_in_a_manifest(word: str) -> None:
    told = said("generate", "kubernetes", "job", "--image", "r/x:1", "--", "python", word)
    assert word in strings(list(yaml.safe_load_all(told.out)))
    # A reader that is stricter than PyYAML takes no half of a surrogate pair.
    assert "\\ud8" not in told.out


@pytest.mark.parametrize("piece", ["job", "jobset", "daemonset"])
@pytest.mark.parametrize("sign", ["\u0085", "\u2028", "\x7f", "\x0b", "\x1c", "\r", "\n", "\udc80", "\x9b"])
def test_a_path_that_a_manifest_cannot_hold_is_refused(piece: str, sign: str) -> None:
    told = said("generate", "kubernetes", piece, "--image", "r/x:1", "--policy", f"/a{sign}b")
    assert (told.status, told.out) == (2, "") and "--policy" in told.err


def test_bytes_that_are_no_text_are_refused_in_a_manifest() -> None:
    assert said("generate", "kubernetes", "job", "--image", "r/x:1", "--", "python", "\udc80").status == 2


@pytest.mark.parametrize("cause", ["x" * 300_000, "$(touch x)", "../../etc/passwd", ["gpu-lost"], "gpu-lost\nfatal"])
def test_a_cause_of_a_document_is_a_name(cause: Any, tmp_path: Path) -> None:
    """What is none was told as one, whatever its length."""
    stage = {"stage": "device", "verdict": "fail", "cause": cause, "seen": "x", "ranks": [1]}
    node = {"node": "n1", "causes": [{"cause": cause, "seen": "x", "weight": "fatal"}]}
    for document in (
        {"schema": "torchtune-sys/smoke/1", "stages": [stage]},
        {"schema": "torchtune-sys/preflight/1", "nodes": [node]},
    ):
        (tmp_path / "x.json").write_text(json.dumps(document))
        told = said("diagnose", str(tmp_path / "x.json"))
        assert "is not as torchtune-sys/" in told.text and len(told.text) < 2000


def test_a_text_in_the_place_of_a_list_is_no_nodes(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"schema": "torchtune-sys/preflight/1", "nodes": [], "absent": "n7"}))
    assert "is not as torchtune-sys/" in said("diagnose", str(tmp_path / "x.json")).text


@pytest.mark.parametrize("schema", ["x" * 200_000, [*range(10_000)], {"x": "y" * 100_000}], ids=["text", "list", "object"])
@pytest.mark.parametrize(
    "command", [("check", "--from"), ("plan", "--from"), ("compare",), ("fleet", "--dir")], ids=lambda words: words[0]
)
def test_an_error_does_not_repeat_its_input(command: tuple[str, ...], schema: Any, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(json.dumps({"schema": schema}))
    told = said(*command, str(tmp_path / "x.json"))
    assert told.status in (2, 3) and len(told.text) < 10_000


@pytest.mark.parametrize("line", ['ignore = ["{}"]', "{} = 1", "ignore = {}"], ids=["rule", "key", "number"])
def test_a_policy_s_words_are_not_repeated_whole(line: str, tmp_path: Path) -> None:
    """Names of 6 kB were: the sentence around them was lost."""
    path = tmp_path / "policy.toml"
    path.write_text(line.format("7" * 4000))
    told = said("preflight", "--policy", str(path))
    assert told.status == 2 and len(told.text) < 1000 + len(str(path)) and "777…" in told.text


NAMED = re.compile(r"\b[A-Z][A-Z0-9]{1,20}_[A-Z0-9_]{2,40}\b")


@pytest.mark.parametrize("piece", ["x", ",", "/a", "x,", "GPU-1,"])
def test_no_verdict_repeats_a_long_variable(piece: str) -> None:
    """All variables that rules read, 64 kB each: one stood whole in a verdict, one 98,000 times, and a path of 32,000 folders was looked at folder by folder."""
    package = Path(engine.__file__).parent
    sources = [
        path
        for part in ("rules", "probes", "knowledge")
        for path in (package / part).rglob("*")
        if path.suffix in (".py", ".csv")
    ]
    names = {name for path in sources for name in NAMED.findall(path.read_text())}
    assert len(names) > 500
    long = {name: piece * (65536 // len(piece)) for name in names}
    seen = engine.ProbeRun(RecordedHost({"env": long}, "x"), Workload()).end(60)
    begun = time.process_time()
    results = engine.judge(seen, by_id().values())
    assert time.process_time() - begun < 15
    for result in results:
        said = [text for each in result.evidence for text in (each.subject, each.seen, each.wanted, each.source)]
        assert all(len(text) < 5000 for text in (*said, str(result.why_unknown))), result.rule.id
        assert len(result.evidence) < 1000 and result.verdict.value != "crashed", result.rule.id


def test_a_path_that_no_system_call_takes_is_not_walked() -> None:
    """32,000 folders of a variable (TMPDIR, HF_HOME) were each looked at: one second a variable."""
    begun = time.process_time()
    found = storage.probe(LiveHost(), Workload(data=("/a" * 32_768,)))
    assert time.process_time() - begun < 0.5
    (place,) = (place for place in found.places if place.role == "data")
    assert len(place.path) <= 4096 and isinstance(place.exists, Missing)


def test_a_proof_that_is_larger_than_any_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "proof.json").write_text("x" * (600 << 10))
    (tmp_path / "small.json").write_text("x" * 1000)
    assert isinstance(proof.read(LiveHost(), f"{tmp_path}/proof.json"), Missing)
    assert proof.read(LiveHost(), f"{tmp_path}/small.json") == "x" * 1000


def test_a_hole_of_a_terabyte_is_refused_at_once(tmp_path: Path) -> None:
    """4 GiB of it were read first, 18 s of the processor for each such file in a folder that others write to."""
    with open(tmp_path / "rank0.log", "wb") as file:
        file.truncate(1 << 40)
    begun = time.process_time()
    assert "larger than 4096 MiB" in said("diagnose", str(tmp_path)).text
    assert time.process_time() - begun < 5


@pytest.mark.parametrize("told", ["x", "(" * 100, "", "9" * 5000])
def test_what_an_environment_says_of_its_cuda_crashes_no_rule(told: str) -> None:
    """torch/version.py is its owner's: four rules crashed, and root's check ended with status 4, an internal error."""
    torch = parse_torch(f"__version__ = '2.9.0'\ncuda = '{told}'\n", "/e", ())
    assert not isinstance(torch, Missing)
    seen = load("healthy")
    assert not isinstance(seen.python, Missing)
    seen = replace(seen, python=replace(seen.python, torch=torch))
    assert [result.rule.id for result in engine.judge(seen, by_id().values()) if result.verdict.value == "crashed"] == []


def test_a_version_of_any_length_is_none() -> None:
    """Of 300 kB it stood whole in the report, and in what ``generate install`` prints."""
    assert isinstance(parse_torch(f"__version__ = '{'2.9' * 100_000}'\n", "/e", ()), Missing)
