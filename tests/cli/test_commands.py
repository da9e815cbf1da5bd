"""Each command as a person calls it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from driven import HOSTS, environment, judged_by, run

from torchtune_sys import __version__
from torchtune_sys.cli.commands import check
from torchtune_sys.cli.main import COMMANDS, cli
from torchtune_sys.model.snapshot import FAMILIES
from torchtune_sys.rules import CATALOGUE

SMALL = str(HOSTS / "base-system.json")


def test_version() -> None:
    found = run("--version")
    assert (found.returncode, found.stdout) == (0, f"torchtune-sys, version {__version__}\n")


def test_alone_it_prints_help() -> None:
    found = run()
    assert found.returncode == 0
    assert found.stdout == run("--help").stdout
    assert all(name in found.stdout for name in COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_command_says(name: str) -> None:
    command = cli.get_command(cli.make_context("torchtune-sys", [], resilient_parsing=True), name)
    assert command is not None and command.name == name
    found = run(name, "-h")
    assert found.returncode == 0
    assert found.stdout.startswith(f"Usage: torchtune-sys {name} ")
    assert found.stdout.isascii(), "click cannot write anything else in a plain C locale"
    assert all(len(row) <= 80 or "torchtune-sys" in row or "Example" in row for row in found.stdout.splitlines())


@pytest.mark.sampled(6)
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["chek"], "did you mean check?"),
        (["check", "--timeout", "0"], "0 is not a number of seconds above 0 and at most 86400"),
        (["check", "--timeout", "soon"], "'soon' is not a number"),
        (["apply", "--wait", "nan"], "nan is not a number of seconds at least 0 and"),
        (["undo", "--wait", "inf"], "inf is not a number of seconds at least 0 and"),
        (["smoke", "--timeout", "NaN"], "nan is not a number of seconds at least 1 and"),
        (["check", "--format", "yaml"], "yaml"),
        (["check", "--nproc-per-node", "0"], "--nproc-per-node"),
        (["check", "--workers", "-1"], "--workers"),
        (["explain"], "RULE"),
        (["check", "--select", "no-such-rule"], "no rule, family or severity is called 'no-such-rule'"),
        (["check", "--from", "/does/not/exist"], "/does/not/exist"),
        (["check", "--from", "a", "--root", "b"], "--from and --root"),
        (["check", "--root", "/does/not/exist"], "/does/not/exist"),
        (["check", "--config", "/does/not/exist"], "/does/not/exist"),
        (["completion", "tcsh"], "tcsh"),
        (["record", "--from", "/etc/hostname"], "/etc/hostname"),
    ],
)
def test_a_wrong_call_exits_2_says_what_and_prints_no_result(arguments: list[str], words: str) -> None:
    found = run(*arguments)
    assert found.returncode == 2
    assert found.stdout == ""
    assert words in found.stderr
    assert "Traceback" not in found.stderr


def test_an_unknown_rule_gets_a_suggestion() -> None:
    name = CATALOGUE[0].id
    found = run("explain", name[:-1] + "x")
    assert found.returncode == 2
    assert f"did you mean {name}" in found.stderr


def test_explain_every_rule() -> None:
    """All in one process: 100 starts would only measure the machine."""
    from click.testing import CliRunner

    for rule in CATALOGUE:
        found = CliRunner().invoke(cli, ["explain", rule.id])
        assert found.exit_code == 0, found.output
        shown = " ".join(found.output.split())
        assert rule.id in shown
        for heading in ("Why it matters", "When to leave it", "References"):
            assert re.search(rf"^{heading}$", found.output, re.M), rule.id
        for param in rule.params:
            assert f"{param.name} = " in shown


def test_explain_every_cause_that_another_command_names() -> None:
    from click.testing import CliRunner

    from torchtune_sys.knowledge.causes import cause_rows

    rules = {rule.id for rule in CATALOGUE}
    for row in cause_rows().values():
        found = CliRunner().invoke(cli, ["explain", row.cause])
        assert found.exit_code == 0, found.output
        shown = " ".join(found.output.split())
        parts = (row.cause,) if row.cause in rules else (row.title, row.fix)
        assert all(" ".join(part.split()) in shown for part in parts), row.cause
    told = json.loads(run("explain", "host-memory-oom", "--format", "json").stdout)
    assert told["cause"]["fix"] and "oom-kill-logged" in [rule["rule"] for rule in told["rules"]]


@pytest.mark.parametrize("is_checkout", [True, False])
def test_a_page_is_named_where_it_is(is_checkout: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed tool has no docs/ beside it; then nothing is cut, either, of what the page would hold."""
    from click.testing import CliRunner

    from torchtune_sys.render import explain

    monkeypatch.setattr(explain, "_CHECKOUT", Path(__file__).parents[2] if is_checkout else tmp_path)
    for name, page in (
        ("swappiness-high", "docs/rules/swappiness-high.md"),
        ("host-memory-oom", "docs/causes/host-memory-oom.md"),
    ):
        shown = CliRunner().invoke(cli, ["explain", name]).output
        assert (page in shown) is ("Page: " in shown) is is_checkout, shown
        assert is_checkout or "on its page" not in shown, shown


def test_explain_several_at_once_in_their_order_and_each_once() -> None:
    first, second, cause = (run("explain", name).stdout for name in ("swappiness-high", "dev-shm-too-small", "host-memory-oom"))
    found = run("explain", "swappiness-high", "host-memory-oom", "dev-shm-too-small", "swappiness-high")
    assert found.stdout == f"{first}\n{cause}\n{second}", found.stderr
    refused = run("explain", "swappiness-high", "no-such-rule")
    assert (refused.returncode, refused.stdout) == (2, "") and "'no-such-rule'" in refused.stderr
    told = json.loads(run("explain", "oom-kill-logged", "host-memory-oom", "gpu-memory-too-small", "--format", "json").stdout)
    named = [rule["rule"] for rule in told["rules"]]
    assert named[0] == "oom-kill-logged" and len(named) == len(set(named)) and "cause" not in told
    assert [row["cause"] for row in told["causes"]] == ["host-memory-oom", "gpu-memory-too-small"]


def test_rules_lists_each_once_as_text_and_as_json() -> None:
    text = run("rules").stdout
    found = json.loads(run("rules", "--format", "json").stdout)
    assert [item["rule"] for item in found["rules"]] == [rule.id for rule in CATALOGUE]
    for rule in CATALOGUE:
        assert len(re.findall(rf"^  \w+ +{re.escape(rule.id)}  ", text, re.M)) == 1


def test_rules_are_found_by_words_of_their_explanation() -> None:
    found = run("rules", "--search", "Manager fabric", "--select", "driver").stdout
    assert "fabric-manager-not-running" in found and "nouveau" not in found


def test_words_that_no_rule_has_are_told_as_such() -> None:
    nothing = run("rules", "--search", "fabric zebra")
    assert nothing.returncode == 2 and nothing.stderr.startswith("torchtune-sys: no rule speaks of 'fabric zebra'")


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("note", "--run", "99999", " "), 2, "torchtune-sys: a note is empty\n"),
        (("diagnose",), 3, "logs: is an empty directory\n"),
        (("diagnose", "CUDA out of memory"), 3, "a message itself is read from standard input\n"),
    ],
)
def test_what_holds_nothing_is_told_as_such(tmp_path: Path, words: tuple[str, ...], status: int, told: str) -> None:
    (logs := tmp_path / "logs").mkdir()
    done = run(*words, *([str(logs)] if words[0] == "diagnose" else []), env={"COLUMNS": "300"})
    assert done.returncode == status and told in done.stderr + done.stdout


def test_rules_can_be_selected() -> None:
    found = json.loads(run("rules", "--select", "error", "--ignore", "memory", "--format", "json").stdout)
    chosen = {item["rule"] for item in found["rules"]}
    assert chosen == {rule.id for rule in CATALOGUE if rule.severity.value == "error" and rule.family != "memory"}


def test_check_of_a_recording_names_it() -> None:
    found = run("check", "--from", SMALL)
    assert found.returncode in (0, 1, 3)
    assert "recording base-system.json" in found.stdout
    assert found.stderr == ""


def test_check_reads_a_recording_from_standard_input() -> None:
    found = run("check", "--from", "-", data=Path(SMALL).read_text())
    assert found.returncode in (0, 1, 3)
    assert "standard input" in found.stdout


def test_json_goes_to_standard_output_alone() -> None:
    found = run("check", "--from", SMALL, "--format", "json", "--color", "always")
    report = json.loads(found.stdout)
    assert report["schema"] == "torchtune-sys/report/1"
    assert report["host"]["origin"] == "recording base-system.json"
    assert len(report["results"]) == len(CATALOGUE)
    assert found.stderr == ""


def test_snapshot_as_json_and_as_text() -> None:
    found = json.loads(run("snapshot", "--from", SMALL, "--format", "json").stdout)
    assert found["schema"] == "torchtune-sys/snapshot/1"
    assert found["origin"] == "recording base-system.json"
    text = run("snapshot", "--from", SMALL).stdout
    assert re.search(r"^system$", text, re.M) and re.search(r"^  kernel ", text, re.M)


def test_snapshot_timings_go_to_standard_error() -> None:
    found = run("snapshot", "--from", SMALL, "--timings", "--format", "json")
    json.loads(found.stdout)
    assert re.search(r"^ +\d+\.\d ms  system$", found.stderr, re.M)


def test_check_tells_where_the_time_went_on_standard_error() -> None:
    found = run("check", "--profile-probes", "--format", "json", "--from", str(HOSTS / "healthy.json"))
    assert found.returncode == 0 and json.loads(found.stdout)
    rows = [row.split() for row in found.stderr.splitlines()]
    assert {row[2] for row in rows} == set(FAMILIES)
    times = [float(row[0]) for row in rows]
    assert times == sorted(times, reverse=True) and all(row[1] == "ms" for row in rows)


def test_record_makes_what_check_judges(tmp_path: Path) -> None:
    place = tmp_path / "host.json"
    found = run("record", "-o", str(place), "--nproc-per-node", "3")
    assert found.returncode == 0, found.stderr
    assert found.stdout == ""
    assert re.match(r"recorded \d+ files?, .*; \d+ texts held names", found.stderr)
    recording = json.loads(place.read_text())
    assert recording["schema"] == "torchtune-sys/recording/1"
    assert recording["intent"]["ranks"] == 3
    report = json.loads(run("check", "--from", str(place), "--format", "json").stdout)
    assert report["host"]["intent"]["ranks"] == 3
    overridden = json.loads(run("check", "--from", str(place), "--nproc-per-node", "5", "--format", "json").stdout)
    assert overridden["host"]["intent"]["ranks"] == 5


def test_a_recording_is_judged_as_its_host_was(tmp_path: Path) -> None:
    place = tmp_path / "host.json"
    common = ["--python", sys.executable]
    run("record", "-o", str(place), *common)
    live = json.loads(run("check", "--format", "json", *common).stdout)
    again = json.loads(run("check", "--format", "json", "--from", str(place)).stdout)
    verdicts = [{item["rule"]: item["verdict"] for item in report["results"]} for report in (live, again)]
    assert verdicts[0] == verdicts[1]


@pytest.mark.essential
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", check.FORMATS)
def test_output_writes_the_same_bytes_to_a_file(name: str, tmp_path: Path) -> None:
    place = tmp_path / "report"
    to_file = judged_by("E-fails A-passes W-denied", "--format", name, "--output", str(place))
    to_stdout = judged_by("E-fails A-passes W-denied", "--format", name, "--output", "-")
    assert to_file.stdout == ""
    assert to_file.returncode == to_stdout.returncode
    timeless = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|_seconds [\d.]+")
    assert timeless.sub("", place.read_text()) == timeless.sub("", to_stdout.stdout)


def test_output_replaces_a_file_whole_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    place = tmp_path / "report.json"
    place.write_text("old " * 100_000)
    judged_by("A-passes", "--format", "json", "--output", str(place))
    json.loads(place.read_text())
    assert os.listdir(tmp_path) == ["report.json"]


def test_check_looks_at_the_mounts_once() -> None:
    """A home that a dead server holds is waited for once, also by who looks for a proof in it."""
    code = (
        "import os; from torchtune_sys.host import live; usual = live.Remotes\n"
        "live.Remotes = lambda text: os.write(2, b'once ') and usual(text)\n"
        "from torchtune_sys.cli.main import main; main()"
    )
    argv = [sys.executable, "-c", code, "check", "--select", "system"]
    done = subprocess.run(argv, env=environment(), capture_output=True, encoding="utf-8", timeout=60)
    assert done.stderr == "once "
