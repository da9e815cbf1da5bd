"""Every command of this tool that its own texts offer is one that the command line takes: in the source, and in reports on recorded hosts."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from difflib import get_close_matches
from pathlib import Path

import click
import pytest
from driven import run

import torchtune_sys
from conftest import HOSTS
from torchtune_sys.cli.main import cli
from torchtune_sys.knowledge.causes import cause_rows
from torchtune_sys.rules import by_id

SOURCE = Path(torchtune_sys.__file__).parent
OFFERED = re.compile(r"(?<![\w/.@-])torchtune-sys ((?:--)?[a-z](?:(?!torchtune-sys )[^\n`\"'();:{}\[\]])*)")


def offered(text: str) -> Iterator[list[str]]:
    """Yield the words behind the tool's name, to the end of what may be a command."""
    for found in OFFERED.finditer(text):
        words = re.split(r"[,;]|\.(?:\s|$)|\s[–|>&]|\s#", found[1])[0].split()
        if words:
            yield words[: words.index("--")] if "--" in words else words


def fault(words: list[str]) -> str:
    """Return what the command line would refuse of these words, which prose may follow."""
    command: click.Command = cli
    context = click.Context(cli, info_name="torchtune-sys")
    rest = list(words)
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        if not re.fullmatch(r"[a-z][a-z-]*", rest[0]):
            return ""
        if rest[0] not in command.list_commands(context):
            close = get_close_matches(rest[0], command.list_commands(context), cutoff=0.75)
            return f"no command {rest[0]}" if close else ""  # else a sentence about the tool
        command, rest = command.get_command(context, rest[0]) or command, rest[1:]
    options = {name: param for param in command.get_params(context) for name in (*param.opts, *param.secondary_opts)}
    for at, word in enumerate(rest):
        name, _, value = word.partition("=")
        if name.startswith("--"):
            if name not in options:
                return f"{command.name}: no option {name}"
            value = value or next(iter(rest[at + 1 : at + 2]), "")
            kind = options[name].type
            if isinstance(kind, click.Choice) and re.fullmatch(r"[a-z][a-z-]*", value) and value not in kind.choices:
                return f"{command.name}: {name} {value}"
    if command.name == "explain" and rest and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", rest[0]):
        return "" if rest[0] in {*by_id(), *cause_rows()} else f"explain: {rest[0]}"
    return ""


def faults(text: str) -> list[str]:
    return [f"{' '.join(words)[:60]}: {wrong}" for words in offered(text) if (wrong := fault(words))]


def _texts() -> Iterator[tuple[str, str]]:
    """Yield the strings of the source, where those that are formatted keep what they name, and the tables."""
    for file in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "X" for part in node.values]
                yield file.name, "".join(map(str, parts))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield file.name, node.value
    for file in (*(SOURCE / "knowledge" / "data").glob("*.csv"), *(Path(__file__).parents[2] / "templates").rglob("*.j2")):
        yield file.name, file.read_text()


def test_a_command_that_there_is_not_is_noticed() -> None:
    text = "run torchtune-sys aply; torchtune-sys check --formt json, torchtune-sys check --format yaml\ntorchtune-sys explain no-such-rule"
    assert [found.split(": ", 1)[1] for found in faults(text)] == [
        "no command aply",
        "check: no option --formt",
        "check: --format yaml",
        "explain: no-such-rule",
    ]


def test_what_the_source_offers_is_a_command() -> None:
    found = [text for _, text in _texts() if "torchtune-sys " in text]
    assert len(found) > 100
    assert [wrong for text in found for wrong in faults(text)] == []


@pytest.mark.sampled(12, 16)
@pytest.mark.parametrize("host", sorted(HOSTS.glob("*.fail.json"))[::9], ids=lambda host: host.name)
def test_what_a_report_offers_is_a_command(host: Path) -> None:
    """Joined again, since a row ends where the terminal does."""
    texts = [run(*words, "--from", str(host)).stdout for words in (("check", "--strict"), ("plan", "-v"))]
    assert (
        any(list(offered(text)) for text in texts) and [wrong for text in texts for wrong in faults(" ".join(text.split()))] == []
    )
