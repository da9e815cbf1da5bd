"""The report for people."""

from __future__ import annotations

import json
import re

import msgspec
import pytest
from made import DENIED, EVERYTHING, LATE, crashed, failed, not_applicable, passed, report, unknown

from conftest import judge, load
from torchtune_sys.model.actions import Advice, EnvironmentVariable
from torchtune_sys.model.rule import Evidence, Result, Severity, Verdict
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.render import as_json, machine, text
from torchtune_sys.render.layout import Style
from torchtune_sys.render.report import summary, unjudged


def shown(*results: Result, width: int = 80, **options: bool) -> str:
    return text.render(report(*results), Style(width=width), **options)


def headline(*results: Result) -> str:
    return " ".join(text.verdict(report(*results), summary(results)).split())


def test_headline_counts_findings_and_names_the_worst() -> None:
    found = headline(*EVERYTHING)
    assert found.startswith("1 error, 1 warning, 1 advice – training will fail or go wrong: The driver is too old for this torch")
    assert "1 check crashed" in found


def test_headline_of_a_good_host_says_how_much_was_judged() -> None:
    good = (passed(), passed("two-well"))
    assert headline(*good) == "no problem found; 2 checks passed"
    assert headline(*good, unknown("x-y", DENIED)) == "no problem found; 2 checks passed, 1 could not be checked"


def test_the_closing_line_calls_what_could_not_be_checked_as_its_heading_does() -> None:
    said = " ".join(shown(*EVERYTHING).split())
    assert "Could not be checked" in said
    assert "1 passed, 3 failed, 2 could not be checked, 1 not applicable, 1 crashed" in said
    assert not re.search(r"\d unknown", said)


def test_a_host_of_which_little_was_seen_is_not_called_good() -> None:
    found = headline(passed(), unknown("x-y", DENIED), unknown("x-z", DENIED))
    assert found == "too little could be seen to judge this host: 1 check passed, 2 could not be checked"
    assert "no problem" not in headline(unknown("x-y", DENIED), not_applicable())
    left_out = Missing(Why.NOT_RECORDED, "report", "not in the report")
    assert headline(passed(), unknown("x-y", left_out), unknown("x-z", left_out)).startswith("no problem found in the input; 1")
    assert "no problem" not in headline(not_applicable())
    nothing = headline(unknown("x-y", left_out), not_applicable())
    assert nothing == "nothing could be checked: what 1 check would need was not seen"


def test_an_older_proof_does_not_stand_beside_an_error() -> None:
    """ "cannot train …; training proven 4 hours ago" was read as fine now."""

    def first(*results: Result) -> str:
        told = msgspec.structs.replace(report(*results), proof="training proven 4 hours ago")
        return "".join(words for words, _style in text.headline(told, summary(results)).spans)

    assert first(passed()).endswith("; training proven 4 hours ago")
    assert "proven" not in first(passed(), failed("a-b", severity=Severity.ERROR))


def test_warnings_alone_do_not_say_that_training_fails() -> None:
    found = headline(failed("a-b", severity=Severity.WARNING), passed())
    assert found == "1 warning – training may be slow or fragile"


def test_advice_alone_is_no_problem() -> None:
    assert headline(failed("a-b", severity=Severity.ADVICE), passed()).startswith("no problem found, 1 advice; 1 check passed")


def test_a_crash_is_never_hidden_behind_a_good_verdict() -> None:
    found = headline(passed(), crashed())
    assert "no problem found by the checks that ran" in found and "1 check crashed" in found


def test_findings_come_by_severity_whatever_the_order_of_the_catalogue() -> None:
    found = shown(*reversed(EVERYTHING))
    assert found.index("[driver-too-old]") < found.index("[links-slow]") < found.index("[swappiness-high]")


def test_a_finding_says_who_what_wanted_where_and_how_to_mend_it() -> None:
    found = shown(*EVERYTHING, width=100)
    assert "GPU 0-2,5: 535.104.05, should be 580.65.06 or newer (NVML)" in found
    assert "fix: install driver 580.65.06 or newer (takes effect after: reboot) (+1 more fix: explain)" in found
    assert "torchtune-sys explain driver-too-old" in found


def test_what_a_subject_has_of_its_own_is_the_fix_in_every_format() -> None:
    own = EnvironmentVariable(name="TRITON_CACHE_DIR", value="/local"), Advice(text="hand the node over")
    subjects = [Evidence(subject=f"it {n}", seen="bad", fix=(action,)) for n, action in enumerate(own)]
    made = report(failed("cache-bad", *subjects, fix=(Advice(text="the rule's own words"),)))
    for name in ("markdown", "github"):
        printed = machine(name, made).replace("\\", "")
        assert "TRITON_CACHE_DIR" in printed and "the rule's own words" not in printed
    text = shown(failed("cache-bad", *subjects, fix=(Advice(text="the rule's own words"),)))
    assert "TRITON_CACHE_DIR=/local (takes effect after: restart of the job) (+1 more fix: explain)" in " ".join(text.split())
    [result] = json.loads(as_json.render(made))["results"]
    assert [action["action"] for action in result["fix"]] == ["environment", "advice"]


def test_what_is_unknown_says_why_and_what_would_tell() -> None:
    found = shown(*EVERYTHING, width=100)
    assert "run as root – /proc/secret: permission denied [secret-kept]" in found
    assert "no answer in time – nvidia-smi: no answer within 10 s [smi-hangs]" in found


def test_what_hangs_is_the_first_of_what_is_unknown() -> None:
    def missing(why: Why, place: str, remedy: str = "") -> Missing:
        return Missing(why, place, "", remedy)

    found = shown(
        unknown("kept", missing(Why.DENIED, "/proc/secret", "run as root")),
        *(unknown(f"kept-{n}", missing(Why.NO_TOOL, f"tool-{n}", f"install tool-{n}")) for n in range(5)),
        unknown("hung-cut", missing(Why.TIMEOUT, "nvidia-smi", "a longer --timeout")),
        unknown("hung", missing(Why.TIMEOUT, "nvme")),
    )
    assert 0 < found.index("hung-cut") < found.index("nvme") < found.index("kept")


def test_a_long_remedy_has_its_own_line_and_is_not_cut() -> None:
    remedy = "fio --name=read --filename=/data/x --rw=randread --bs=128k --direct=1 --readonly --runtime=30"
    found = shown(unknown("disk-kind", Missing(Why.NOT_SUPPORTED, "/sys/block/vda", "virtual", remedy)), width=100)
    assert "to find out: " in found
    assert remedy in " ".join(found.split())


def test_a_finding_that_is_partly_unknown_is_in_both_lists() -> None:
    both = Result(
        rule=failed("half-seen").rule, verdict=Verdict.FAIL, evidence=(Evidence(subject="GPU 0", seen="bad"),), why_unknown=DENIED
    )
    found = shown(both)
    assert "[half-seen]" in found and "permission denied [half-seen]" in found


def test_long_lists_are_cut_and_say_so_unless_verbose() -> None:
    many = [failed(f"finding-{n}x", severity=Severity.ADVICE) for n in range(9)]
    found = shown(*many)
    assert "+5 more (--verbose): finding-4x" in found
    assert found.count("Something is wrong") == 4
    assert shown(*many, verbose=True).count("Something is wrong") == 9


def test_verbose_shows_what_passed_with_what_was_seen() -> None:
    good = Result(
        rule=passed("swap-fine").rule, verdict=Verdict.PASS, evidence=(Evidence(subject="swap", seen="0", verdict=Verdict.PASS),)
    )
    assert "swap-fine: swap: 0" in shown(good, verbose=True)
    assert "swap-fine" not in shown(good)
    assert "no-such-thing: no GPU on this host" in shown(not_applicable(), verbose=True)


def test_quiet_leaves_the_verdict_and_the_findings() -> None:
    found = shown(*EVERYTHING, quiet=True)
    assert "[driver-too-old]" in found
    assert "secret-kept" not in found and "GPU  " not in found


def test_everything_fits_one_screen() -> None:
    many = [failed(f"{level.value}-{n}x", severity=level) for level in Severity for n in range(12)]
    reasons = [Missing(Why.DENIED, f"/proc/{n}", "permission denied", f"remedy {n}") for n in range(20)]
    found = shown(*many, *(unknown(f"unknown-{n}x", missing) for n, missing in enumerate(reasons)), width=100)
    assert len(found.splitlines()) <= 80


@pytest.mark.parametrize(
    ("names", "joined"),
    [
        (["GPU 0", "GPU 1", "GPU 2", "GPU 5"], "GPU 0-2,5"),
        (["mlx5_1", "mlx5_0"], "mlx5_0-1"),
        (["0000:1b:00.0", "0000:1b:00.1"], "0000:1b:00.0, 0000:1b:00.1"),
        (["/dev/shm"], "/dev/shm"),
        (["eth0", "vm.swappiness", "eth1"], "eth0-1, vm.swappiness"),
        (["node 01"], "node 01"),
        (["x²"], "x²"),
        ([""], ""),
        (["12345678901234567890"], "12345678901234567890"),
    ],
)
def test_subjects_of_one_kind_are_joined(names: list[str], joined: str) -> None:
    assert text.subjects(names) == joined


def test_hostile_text_of_a_host_cannot_steer_the_terminal() -> None:
    evil = Evidence(subject="GPU\x1b[2J 0", seen="\x1b]8;;http://x\x07click", wanted="\x9b31m", source="/tmp/\u202egnp.sh")
    found = shown(failed("evil-host", evil, title="Evil"), verbose=True)
    assert all(sign.isprintable() or sign == "\n" for sign in found)


def test_which_unknowns_count_as_could_not_judge() -> None:
    assert unjudged(unknown("a-b", LATE), strict=False)
    assert not unjudged(unknown("a-b", DENIED), strict=False)
    assert unjudged(unknown("a-b", DENIED), strict=True)
    assert not unjudged(unknown("a-b", LATE, Severity.WARNING), strict=True)
    assert not unjudged(not_applicable(), strict=True)


def test_the_healthy_host_in_three_lines() -> None:
    seen = load("healthy")
    found = text.render(
        report(*judge(seen).values(), **{name: getattr(seen, name) for name in seen.__struct_fields__}), Style(width=100)
    )
    rows = " ".join(found.split())
    assert "trainer-01: trains on 8 GPUs; no problem found" in rows
    assert "8 x NVIDIA H100 80GB HBM3, driver 580.95.05 (open module), CUDA up to 13.0" in rows
    assert (
        "Ubuntu 24.04" in rows
        and "64 CPUs" in rows
        and "2 NUMA nodes" in rows
        and "1007 GiB memory" in rows
        and "bare metal" in rows
    )
    assert "3.12.3 /data/train/.venv/bin/python3, torch 2.11.0+cu130 (CUDA 13.0)" in rows
    assert "user ubuntu" in rows and "8 ranks" in rows
