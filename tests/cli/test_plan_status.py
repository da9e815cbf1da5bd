"""The exit status of ``plan``: 1 where there are changes, 3 where what decides them could not be seen, else 0."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from driven import HOSTS, run


@pytest.mark.parametrize(
    ("host", "select", "status"),
    [
        ("swappiness-high.fail", "swappiness-high", 1),
        ("swappiness-high.unknown", "swappiness-high", 3),
        ("healthy", "sysctl", 0),
        ("hugepages-hoard-memory.unknown", "hugepages-hoard-memory", 0),  # only a person could do something about it
    ],
)
def test_status(host: str, select: str, status: int) -> None:
    done = run("plan", "--from", str(HOSTS / f"{host}.json"), "--select", select)
    assert done.returncode == status, done.stdout + done.stderr
    assert (f"could not be checked: {select}: " in done.stderr) == (status == 3)
    assert "cannot train" not in done.stderr


def test_a_missing_torch_is_told_and_how_it_is_installed() -> None:
    """No rule fails for it: without these words ``plan`` says *nothing to change* of a host that cannot train."""
    done = run("plan", "--select", "swappiness-high", "--python", sys.executable)
    assert f"cannot train: no torch in {sys.executable}: torchtune-sys generate install prints" in done.stderr, done.stderr


def test_another_host_is_not_changed_from_here() -> None:
    done = run("plan", "--from", str(HOSTS / "swappiness-high.fail.json"), "--select", "swappiness-high")
    assert (
        "on that host, sudo torchtune-sys apply --select swappiness-high makes the safe changes; torchtune-sys generate script"
        in " ".join(done.stdout.split())
    )


def test_the_command_to_paste_makes_the_same_plan() -> None:
    """Without its options ``apply`` judges by other numbers, and makes other changes than the ones that were shown."""
    given = ("--nnodes=4", "--data", "/a b", "--timeout", "20", "--profile", "cluster", "--select", "swap*")
    done = run("plan", "--from", str(HOSTS / "swappiness-high.fail.json"), "--verbose", "--color", "never", *given)
    said = " ".join(done.stdout.split())
    assert "apply --nnodes 4 --data '/a b' --timeout 20 --select 'swap*' --profile cluster makes the safe changes" in said, said


def test_what_is_changed_is_not_counted_for_a_person_too() -> None:
    """Of a limit both are told: the file that is written, and what containers and services need in its place."""
    done = run("plan", "--from", str(HOSTS / "nofile-limit-too-low.fail.json"), "--select", "nofile-limit-too-low")
    first, rest = done.stdout.split("\n", 1)
    assert first.endswith(": 1 safe change") and "By hand" in rest, done.stdout


@pytest.mark.parametrize(
    "command",
    [
        *("plan", "apply --yes", "apply --dry-run", "apply --yes --format json", "generate script", "generate sysctl"),
        *("plan --select storage", "generate udev --select storage", "generate tmpfiles --select memory"),
        *("generate script --stages tune", "generate cloud-init --stages tune"),
    ],
)
def test_a_plan_without_facts_is_no_answer(command: str) -> None:
    """ "Nothing to change", and exit 0, were said of a host of which nothing had been read in time."""
    selected = () if "--select" in command else ("--select", "sysctl")
    done = run(*command.split(), *selected, "--timeout", "0.0001")
    assert done.returncode == 3 and "could not be checked: " in done.stderr and "not read within" in done.stderr, (
        done.stdout + done.stderr
    )
    assert not re.search("nothing to change|nothing to write", done.stdout.partition("\n")[0] + done.stderr), (
        done.stdout + done.stderr
    )


def test_variables_that_need_facts_which_were_not_read_are_not_fine() -> None:
    done = run("generate", "env", "--select", "sysctl", "--timeout", "0.0001")
    assert done.returncode == 3 and "not read: session, cpu, " in done.stderr and "is fine" not in done.stderr, done.stderr


@pytest.mark.parametrize("form", ["kernel-args", "limits", "modprobe", "tmpfiles", "udev", "systemd", "systemd --unit train"])
def test_facts_that_a_form_does_not_need_are_not_missed(form: str) -> None:
    done = run("generate", *form.split(), "--select", "sysctl", "--timeout", "0.0001")
    assert done.returncode == 0 and "could not be checked" not in done.stderr, done.stderr


@pytest.mark.parametrize(("command", "only"), [("plan", ""), ("apply --dry-run", ""), ("apply --dry-run", "swappiness-high")])
def test_who_reads_json_learns_what_was_not_judged(command: str, only: str) -> None:
    given = ("--only", only) if only else ()
    done = run(*command.split(), *given, "--select", "sysctl", "--timeout", "0.0001", "--format", "json")
    document = json.loads(done.stdout)
    found = document["plan"]["unjudged"] if command == "plan" else document["unjudged"]
    assert all(one["late"] and "not read within" in one["reason"] for one in found)
    assert [one["rule"] for one in found if not only or one["rule"] != only][:1] == ([] if only else ["swappiness-high"])


def test_what_a_paste_lacks_is_told_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "paste.txt").write_text(
        "$ free -m\n               total        used        free      shared  buff/cache   available\nMem:  515000  11000  440000  1000  52000  488000\nSwap:  0  0  0\n"
    )
    done = run("plan", "--from", str(tmp_path / "paste.txt"))
    lines = [line for line in done.stderr.splitlines() if "could not be checked: " in line]
    assert done.returncode == 3 and len(lines) <= 2 and lines[0].endswith("more: not in the report"), done.stderr


@pytest.mark.parametrize(
    ("form", "host", "rule"),
    [
        ("kernel-args", "iommu-translates-gpu-traffic.unknown", "iommu-translates-gpu-traffic"),
        ("modprobe", "uvm-hmm-stops-cuda.unknown", "uvm-hmm-stops-cuda"),
        ("limits", "nofile-limit-too-low.unknown", "nofile-limit-too-low"),
        ("tuned", "swappiness-high.unknown", "swappiness-high"),
        ("script", "swappiness-high.unknown", "swappiness-high"),
    ],
)
def test_what_could_not_be_checked_is_not_said_to_need_nothing(form: str, host: str, rule: str) -> None:
    """ "The plan needs no kernel argument" was said of a rule that had not been judged."""
    done = run("generate", form, "--from", str(HOSTS / f"{host}.json"), "--select", rule)
    assert f"could not be checked: {rule}: " in done.stderr, done.stderr
    assert not re.search("needs no|nothing to write|no change in the plan|does nothing", done.stderr)
    well = run("generate", form, "--from", str(HOSTS / "healthy.json"), "--select", rule)
    assert well.returncode == 0 and "could not be checked" not in well.stderr
