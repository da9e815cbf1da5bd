"""``torchtune-sys compare`` on files of every kind."""

from __future__ import annotations

import csv
import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from made_hosts import facts_line, plain, put

import warm
from conftest import HOSTS, assert_valid

COMPAT = Path(__file__).parent.parent / "compat"
WRITTEN = sorted(path.parent for path in COMPAT.glob("*/snapshot.json.gz"))
TORCH = put("python/torch/version", "2.6.0+cu124")


def run(*words: str | Path, data: bytes = b"") -> subprocess.CompletedProcess[str]:
    done = subprocess.run([*warm.PROGRAM, *map(str, words)], input=data, capture_output=True, timeout=120)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def found(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    value: dict[str, Any] = json.loads(done.stdout)
    assert_valid(value, "compare")
    return value


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(4):
        (tmp_path / f"{number}.json").write_bytes(facts_line(number))
    return tmp_path


@pytest.mark.essential
def test_alike_is_0_and_odd_is_1_and_the_odd_one_is_named(folder: Path) -> None:
    assert run("compare", folder).returncode == 0
    (folder / "9.json").write_bytes(facts_line(9, TORCH))
    done = run("compare", folder, "--format", "json")
    assert done.returncode == 1
    assert [(item["host"], item["fact"], item["weight"]) for item in found(done)["odd"]] == [
        ("node-00009", "python.torch.version", "error")
    ]
    text = run("compare", folder).stdout
    assert "differs from what is usual (node-00009)\n" in text and "python.torch.version: 2.6.0+cu124 (usually" in text
    assert "ssh node-00009 torchtune-sys check" in text


def test_what_differs_in_the_same_way_is_one_line_and_bytes_are_told_in_large_units(folder: Path) -> None:
    driver = (put("driver/module_version", "550.54"), put("gpu/driver_version", "550.54"), put("memory/total_bytes", 1 << 39))
    (folder / "9.json").write_bytes(facts_line(9, *driver))
    text = run("compare", folder).stdout
    assert "driver.module_version, gpu.driver_version: 550.54 (usually 580.95.05)" in text
    assert "memory.total_bytes: 512 GiB (usually 1007 GiB)" in text


def test_what_may_not_be_read_is_told_once_for_a_host_and_accuses_it_of_nothing(folder: Path) -> None:
    closed = [put(path, {"$missing": "denied", "source": "x"}) for path in ("hardware/memory_devices", "software/mps")]
    (folder / "9.json").write_bytes(facts_line(9, *closed))
    done = run("compare", folder)
    assert done.returncode == 3 and "none differ from what is usual, 1 read in part" in done.stdout
    assert "node-00009: 2 facts of others could not be read there" in done.stdout
    unread = found(run("compare", folder, "--format", "json"))["unread"]
    assert [(item["name"], item["partly"]) for item in unread] == [("node-00009", True)]


def test_of_two_the_second_is_compared_with_the_first(folder: Path) -> None:
    (folder / "9.json").write_bytes(facts_line(9, TORCH))
    text = run("compare", folder / "0.json", folder / "9.json").stdout
    assert "2 hosts: 1 differs from the first" in text and "2.6.0+cu124 (the first: " in text and "usual" not in text


def test_one_a_line_on_standard_input_compressed_and_from_a_file(folder: Path) -> None:
    lines = b"".join([*(facts_line(number) for number in range(4)), facts_line(9, TORCH)])
    (folder / "all.jsonl").write_bytes(lines)
    (folder / "all.gz").write_bytes(gzip.compress(lines))
    for words, data in ((["-"], lines), ([folder / "all.jsonl"], b""), ([folder / "all.gz"], b"")):
        done = run("compare", *words, "--format", "json", data=data)
        assert [item["host"] for item in found(done)["odd"]] == ["node-00009"], done.stderr


def test_facts_snapshots_reports_and_recordings_are_read(tmp_path: Path) -> None:
    """The same host in each form is alike, as far as both forms tell."""
    host = HOSTS / "healthy.json"
    (tmp_path / "snapshot.json").write_text(plain())
    for name, words in (("facts", ["snapshot", "--compact"]), ("report", ["check", "--format", "json"])):
        assert run(*words, "--from", host, "-o", tmp_path / name).returncode == 0
    done = run("compare", tmp_path / "facts", tmp_path / "snapshot.json", tmp_path / "report", host, "--format", "json")
    value = found(done)
    assert (done.returncode, value["hosts"], value["odd"], value["unread"]) == (0, 4, [], [])


def test_reports_differ_in_what_the_rules_say(tmp_path: Path) -> None:
    for number, name in enumerate(("healthy", "healthy", "swappiness-high.fail")):
        run("check", "--from", HOSTS / f"{name}.json", "--format", "json", "-o", tmp_path / f"{number}.json")
    value = found(run("compare", tmp_path, "--format", "json"))
    assert ("check.rules[swappiness-high]", "advice") in {(item["fact"], item["weight"]) for item in value["odd"]}
    assert ("swappiness-high", 1) in {(item["rule"], len(item["hosts"])) for item in value["findings"]}


def test_a_rule_that_an_earlier_release_has_not_is_no_difference(tmp_path: Path) -> None:
    """It was told as *none*, with the weight of an error."""
    for name in ("1.json", "2.json", "3.json"):
        run("check", "--from", HOSTS / "healthy.json", "--format", "json", "-o", tmp_path / name)
    report = json.loads((tmp_path / "3.json").read_text())
    report["results"] = [item for item in report["results"] if item["rule"] not in ("driver-too-old", "dev-shm-small")]
    (tmp_path / "3.json").write_text(json.dumps(report))
    assert found(run("compare", tmp_path, "--format", "json"))["odd"] == []


def test_all_forms_of_a_host_without_torch_are_alike(tmp_path: Path) -> None:
    """The report's torch was there, without a version, where the others had none."""
    host = str(tmp_path / "recording.json")
    (tmp_path / "forms").mkdir()
    assert run("record", "--python", sys.executable, "-o", host).returncode == 0
    for name, words in (
        ("report", ("check", "--format", "json")),
        ("facts", ("snapshot", "--compact")),
        ("snapshot", ("snapshot", "--format", "json")),
    ):
        (tmp_path / f"forms/{name}.json").write_text(run(*words, "--from", host).stdout)
    result = found(run("compare", tmp_path / "forms", "--format", "json"))
    assert (result["hosts"], result["unread"], result["odd"]) == (3, [], [])


def test_what_earlier_releases_wrote_is_read(tmp_path: Path) -> None:
    """Recordings of each commit that is kept; and a snapshot without what later releases look for."""
    kept = sorted(COMPAT.glob("*/recording.json"))
    assert kept
    done = run("compare", *kept, *kept, "--format", "json")
    assert (done.returncode, found(done)["unread"]) == (0, [])
    older = json.loads(plain())
    del older["facts"]["software"], older["facts"]["gpu"]["p2p"], older["facts"]["system"]["init"], older["intent"]
    older["facts"]["from_the_future"] = {"x": 1}
    (tmp_path / "old.json").write_text(json.dumps(older))
    (tmp_path / "new.json").write_text(plain())
    done = run("compare", tmp_path, "--format", "json")
    assert (done.returncode, found(done)["odd"]) == (0, [])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("folder", WRITTEN, ids=[folder.name for folder in WRITTEN])
def test_each_form_that_an_earlier_commit_wrote_tells_the_same_host(folder: Path, tmp_path: Path) -> None:
    """Its snapshot, facts and report, and the recording as it is read today: all are read, and alike (tests/compat/make.py)."""
    files = sorted(folder.glob("*.json.gz"))
    done = run("compare", *files, "--format", "json")
    value = found(done)
    assert (value["unread"], value["hosts"]) == ([], len(files))
    assert (value["odd"], value["groups"], done.returncode) == ([], [], 0)
    older = json.loads(gzip.decompress((folder / "snapshot.json.gz").read_bytes()))
    older["facts"]["system"]["kernel"] = "6.8.0-1-other"
    (tmp_path / "changed.json").write_text(json.dumps(older))
    value = found(run("compare", folder / "recording.json.gz", tmp_path / "changed.json", "--format", "json"))
    assert "system.kernel" in {item["fact"] for item in value["odd"]}


def test_files_that_cannot_be_read_are_named_and_stop_nothing(folder: Path) -> None:
    bad = {
        "empty.json": b"",
        "cut.json": facts_line(5)[:900],
        "other.json": b'{"a": 1}',
        "list.json": b"[1]",
        "noise.json": b"\x00\xff" * 99,
        "deep.json": b"[" * 5000,
        "wrong.json": b'{"schema": "torchtune-sys/facts/1", "facts": {"gpu": 3}, "volatile": {}}',
        "rows.json": b'{"schema": "torchtune-sys/facts/1", "facts": {"gpu": {"devices": {"$rows": 4}}}, "volatile": {}}',
        "snapshot.json": b'{"schema": "torchtune-sys/snapshot/1", "facts": {"gpu": 3}}',
        "report.json": b'{"schema": "torchtune-sys/report/1", "results": 3}',
        "tomorrow.json": b'{"schema": "torchtune-sys/tomorrow/1"}',
    }
    for name, data in bad.items():
        (folder / name).write_bytes(data)
    done = run("compare", folder, folder / "gone.json", "--format", "json")
    value = found(done)
    assert {Path(item["name"]).name for item in value["unread"]} == {*bad, "gone.json"}
    assert (done.returncode, value["hosts"], value["odd"]) == (3, 4, []), "alike, as far as they could be read"
    assert "Traceback" not in done.stderr


def test_a_link_that_leads_to_itself_stops_nothing(folder: Path) -> None:
    (folder / "loop.json").symlink_to("loop.json")
    assert f"{folder}/loop.json: Too many levels of symbolic links" in " ".join(run("compare", folder).stdout.split())
    assert found(run("compare", folder, "--format", "json"))["hosts"] == 4


def test_a_directory_for_each_host_as_fetch_of_ansible_makes_them(folder: Path) -> None:
    (folder / "fetched").mkdir()
    for number in range(4):
        place = folder / f"fetched/node-{number}/tmp"
        place.mkdir(parents=True)
        (place / "facts.json").write_bytes(facts_line(number))
    (folder / "fetched/latest").symlink_to("node-0")
    told = found(run("compare", folder / "fetched", "--format", "json"))
    assert (told["hosts"], told["unread"]) == (4, [])
    (folder / "lost+found").mkdir()
    told = found(run("compare", folder, "--format", "json"))
    assert told["hosts"] == 4, "what lies in directories beside files is another collection"
    assert [(item["name"], item["why"]) for item in told["unread"]] == [
        (f"{folder}/fetched", "is a directory beside files: name it, too, to have it read")
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_files_that_went_through_windows(folder: Path, encoding: str) -> None:
    """PowerShell writes UTF-16, and editors there a mark at the start."""
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    for path in folder.glob("*.json"):
        path.write_bytes((mark + path.read_text()).encode(encoding))
    lines = mark + b"".join(facts_line(number) for number in range(4, 8)).decode()
    (folder / "more.jsonl").write_bytes(lines.encode(encoding))
    told = found(run("compare", folder, "--format", "json"))
    assert (told["hosts"], told["unread"]) == (8, [])


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (b'{"schema": "torchtune-sys/facts/1", "facts": []}', "is not as its schema has it"),
        (b'{"schema": "torchtune-sys/facts/2", "facts": {}}', "is torchtune-sys/facts/2, which a later release wrote"),
        (b'{"schema": "torchtune-sys/report/7", "results": []}', "is torchtune-sys/report/7, which a later release wrote"),
        (b'{"schema": "torchtune-sys/facts/1", "facts": {}', "is not JSON"),
    ],
)
def test_why_a_document_is_not_read(folder: Path, document: bytes, why: str) -> None:
    (folder / "x.json").write_bytes(document)
    told = found(run("compare", folder, "--format", "json"))
    assert told["hosts"] == 4
    assert [item["why"][: len(why)] for item in told["unread"]] == [why]


def test_golden_and_before(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    golden = tmp_path_factory.mktemp("golden") / "golden.json"
    golden.write_bytes(facts_line(9, TORCH))
    done = run("compare", folder, "--golden", golden, "--format", "json")
    assert (done.returncode, {item["fact"] for item in found(done)["odd"]}) == (1, {"python.torch.version"})
    yesterday = tmp_path_factory.mktemp("yesterday")
    for number in range(4):
        (yesterday / f"{number}.json").write_bytes(facts_line(number, *([TORCH] if number == 2 else []), seed=2))
    done = run("compare", folder, "--before", yesterday)
    assert done.returncode == 1
    assert "node-00002" in done.stdout and "(was 2.6.0+cu124)" in done.stdout


def test_markdown_and_csv(folder: Path) -> None:
    (folder / "9.json").write_bytes(facts_line(9, TORCH, put("session/env/LANG", "=cmd()|x\x1b[2J")))
    rows = list(csv.DictReader(io.StringIO(run("compare", folder, "--format", "csv").stdout)))
    assert [(row["host"], row["fact"]) for row in rows] == [
        ("node-00009", "python.torch.version"),
        ("node-00009", "session.env[LANG]"),
    ]
    assert rows[1]["value"].startswith("'=") and "\x1b" not in rows[1]["value"]
    page = run("compare", folder, "--format", "markdown").stdout
    assert "| python.torch.version |" in page and "\x1b" not in page


def test_usage_and_nothing_to_compare(folder: Path) -> None:
    assert run("compare").returncode == 2
    alone = run("compare", folder / "0.json")
    assert alone.returncode == 3 and alone.stdout.startswith("nothing to compare: 1 host read, 0 not read\n")
    assert "give what torchtune-sys snapshot --compact prints on two hosts or more" in " ".join(alone.stdout.split())
    assert run("compare", folder / "gone.json").returncode == 3
    for name in ("text", "prose"):
        (folder.parent / name).write_text("no facts")
    assert "2 inputs: " in run("compare", folder.parent / "text", folder.parent / "prose").stdout
    assert run("compare", folder, "--golden", folder / "gone.json").returncode == 2
    assert run("compare", folder, "--golden", "x", "--before", "y").returncode == 2


def test_what_is_lighter_counts_for_nothing(folder: Path) -> None:
    (folder / "9.json").write_bytes(facts_line(9, put("session/env/LANG", "x")))
    assert run("compare", folder).returncode == 1
    done = run("compare", folder, "--weight", "error", "--format", "json")
    assert (done.returncode, found(done)["odd"]) == (0, [])


def test_hosts_of_one_name_are_told_by_their_files(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"copy-{number}.json").write_bytes(facts_line(1))
    (tmp_path / "other.json").write_bytes(facts_line(1, TORCH))
    (item,) = found(run("compare", tmp_path, "--format", "json"))["odd"]
    assert item["host"] == "node-00001 (other.json)"


def test_preflight_writes_the_facts_beside_its_verdict(tmp_path: Path) -> None:
    place = tmp_path / "facts.json"
    run("preflight", "--from", HOSTS / "healthy.json", "--facts", place)
    assert json.loads(place.read_text())["schema"] == "torchtune-sys/facts/1"
    hook = run("preflight", "--hook", "prolog", "--facts", tmp_path / "no" / "such" / "folder.json")
    assert "the facts were not written" in hook.stderr
