"""No word of a host steers what shows it: planted in every text of a host, in every output of every command."""

from __future__ import annotations

import io
import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from outputs import COMMANDS, Said, outputs

from conftest import HOSTS
from torchtune_sys.cli import terminal
from torchtune_sys.host.recorded import RecordedHost, load_recording, merged
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.steering import CONTROL

HOSTILE = "\n::error::pwned ::set-output name=a::b ##[group]c ##vso[d]\x1b[31m\x07\x9b2J\u202e\u2028\r<img src=x>`[a](b)|$(touch x);'\"\\"
CHANGES = (
    "tcp-buffer-ceiling-low",
    "nvme-scheduler-not-none",
    "thp-never",
    "nofile-limit-too-low",
    "openmp-affinity-pins-process",
    "swappiness-high",
    "logind-removes-ipc",
    "iommu-translates-gpu-traffic",
    "pcie-relaxed-ordering-off",
)

KINDS = ("sysctl", "limits", "udev", "tmpfiles", "systemd", "env", "kernel-args --unsafe", "tuned")


def recorded() -> dict[str, Any]:
    """A host that all kinds of changes are asked for."""
    found = load_recording(str(HOSTS / "healthy.json"))
    for name in CHANGES:
        own = json.loads((HOSTS / f"{name}.fail.json").read_bytes())
        own.pop("extends")  # the healthy host once more would take back what the one before changed
        found = merged(found, own)
    return found


def test_the_host_is_asked_for_changes_of_each_kind() -> None:
    commands = tuple(("generate", *kind.split()) for kind in KINDS)
    found = dict(outputs(lambda: RecordedHost(recorded(), "recording x"), commands))
    assert [command for command, said in found.items() if not said.out] == []


def planted(value: Any, plant: Any) -> Any:
    """The same facts with every text changed, keys of tables too."""
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **{name: planted(getattr(value, name), plant) for name in value.__struct_fields__})
    if type(value) is str:
        return plant(value)
    if isinstance(value, (tuple, list)):
        return type(value)(planted(item, plant) for item in value)
    if isinstance(value, dict):
        return {planted(key, plant): planted(item, plant) for key, item in value.items()}
    return value


def steering(name: str, text: str) -> Iterator[str]:
    """What of an output a terminal, a CI service or a reader of its format would act upon."""
    ours = re.compile(r"::(?:error|warning|notice) title=[^:,]*::" if "github" in name else "(?!)")
    for line in text.split("\n"):
        if CONTROL.search(line):
            yield f"{name}: control characters: {line[:200]!r}"
        if re.match(r"\s*::[\w-]+(?: .*)?::", line) and not ours.match(line):
            yield f"{name}: a workflow command: {line[:200]!r}"
        if re.search(r"##(?:vso|teamcity)?\[", line):
            yield f"{name}: a command within a line: {line[:200]!r}"
    if "junit" in name and text:
        ET.fromstring(text)
    if "markdown" in name and re.search(r"<img|\[a\]", _MEANT.sub("", text)):
        yield f"{name}: markup of the host's"


def found_steering(outputs: list[tuple[str, Said]]) -> list[str]:
    found = [words for command, said in outputs for words in steering(command, said.out)]
    found += [words for command, said in outputs for words in steering(command.split()[0] + ", standard error", said.err)]
    return found + [f"{command}: internal error" for command, said in outputs if said.status == 4]


_MEANT = re.compile(r"\\.|(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", re.DOTALL)
"""Escaped signs, and code (CommonMark 2.4, 6.1)."""


def test_the_check_sees_each_of_them() -> None:
    assert len(list(steering("check", "  ::error::x\n##[group]\n\x1b[0m\na\rb"))) == 4
    assert list(steering("check --format github", "::error title=a::b")) == []
    assert len(list(steering("plan --format markdown", "| <img src=x> |"))) == 1


@pytest.mark.essential
@pytest.mark.sampled(1)
@pytest.mark.parametrize("plant", [lambda text: text + HOSTILE, lambda text: HOSTILE + text], ids=["after", "before"])
def test_planted_in_every_fact(plant: Any) -> None:
    def change(seen: Snapshot) -> Snapshot:
        return planted(seen, plant)

    found = list(outputs(lambda: RecordedHost(recorded(), "recording x"), change=change))
    assert found_steering(found) == []
    assert sum("pwned" in said.out for _, said in found) > 15, "it was printed"


ACTED_UPON = re.compile(r"export [XY]=|unset PATH|print x|<0>|\|a=|# HELP x|---$|%TAG")
"""By Slurm's TaskProlog, systemd's journal, Nagios, Prometheus and YAML, at the start of a line."""


@pytest.mark.parametrize("first", [True, False], ids=["before", "after"])
def test_no_line_begins_with_a_host_s_words_that_act_there(first: bool) -> None:
    """A container's owner gives his host any name: `check` and `plan` began their first line with it."""
    words = "\nexport X=1\nunset PATH\nprint x\n<0>x\n|a=1;2\n# HELP x y\n---\n%TAG\n\r\nexport Y=2 "
    commands = tuple(each for each in COMMANDS if each[0] in ("check", "plan"))

    def change(seen: Snapshot) -> Snapshot:
        return planted(seen, lambda text: words + text if first else text + words)

    found = list(outputs(lambda: RecordedHost(recorded(), "recording x"), commands, change=change))
    assert [(name, row) for name, said in found for row in (said.out + said.err).split("\n") if ACTED_UPON.match(row)] == []


def test_planted_in_every_line_of_a_recording() -> None:
    recording = recorded()
    for section in ("files", "links", "commands", "env", "answers"):
        recording[section] = {key: spoilt(value) for key, value in recording.get(section, {}).items()}
    for path, listed in recording.get("dirs", {}).items():
        if isinstance(listed, list):
            recording["dirs"][path] = [*listed, *(entry + HOSTILE for entry in listed[:3])]
    found = list(outputs(lambda: RecordedHost(recording, "recording x" + HOSTILE)))
    assert found_steering(found) == []


def spoilt(value: Any) -> Any:
    """Each line, and each text of an answer, with the hostile words behind it; numbers of files that hold one alone stay."""
    if isinstance(value, str):
        return "\n".join(line + HOSTILE if line and not line.isdecimal() else line for line in value.split("\n"))
    if isinstance(value, list):
        return [spoilt(item) for item in value]
    if isinstance(value, dict):
        return value if "error" in value else {key: spoilt(item) for key, item in value.items()}
    return value


@pytest.mark.parametrize(
    "running", ["4096\t\x1b[31m16384\t65536", "4096 1_6384 65536", "4096 ١٦٣٨٤ 65536", "4096 16384 65536; reboot"]
)
def test_what_is_no_number_is_never_printed_as_a_kernel_setting(running: str) -> None:
    recording = load_recording(str(HOSTS / "tcp-buffer-ceiling-low.fail.json"))
    path = "/proc/sys/net/ipv4/tcp_rmem"
    assert path in recording["files"]
    recording["files"][path] = running
    commands = (("generate", "sysctl"), ("plan",), ("plan", "--format", "diff"), ("generate", "script"))
    found = dict(outputs(lambda: RecordedHost(recording, "recording x"), commands))
    for command in ("generate sysctl", "plan --format diff", "generate script"):
        assert "tcp_rmem" not in found[command].out.replace("tcp_rmem holds", ""), found[command].out
    assert "which is not a number" in " ".join(found["plan"].out.split())


def test_a_file_of_ours_with_control_characters_is_not_continued() -> None:
    recording = load_recording(str(HOSTS / "swappiness-high.fail.json"))
    recording["files"]["/etc/sysctl.d/99-torchtune-sys.conf"] = "# mine\nvm.x = 1 \x1b]0;pwned\x07\n"
    found = dict(outputs(lambda: RecordedHost(recording, "recording x"), (("generate", "sysctl"), ("plan",))))
    assert found["generate sysctl"].out == ""
    assert "holds control characters" in " ".join(found["plan"].out.split())


def test_no_stage_that_a_rank_names_steers_the_terminal_that_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below root a rank runs as the owner of the examined Python, and its own words stand in the status line while it runs."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.delenv("TERM", raising=False)
    show, clear = terminal.stage_progress()
    for stage in (HOSTILE, "x" * 100_000, "\u5e45" * 70, "e\u0301" * 70, "\x1b]0;owned\x07", "allreduce"):
        show(stage, 0, 2)
    clear()
    first, *rows, last = stream.getvalue().split("\r\x1b[K")
    assert (first, last, len(rows)) == ("", "", 6) and "allreduce  (2 ranks)" in rows[-1]
    assert all(text.isascii() and text.isprintable() and len(text) < terminal.USUAL for text in rows)
