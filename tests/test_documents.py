"""What the documents tell people to type exists, and what they link to is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from torchtune_sys import evidence
from torchtune_sys.cli.commands import check
from torchtune_sys.cli.main import cli
from torchtune_sys.knowledge import tables
from torchtune_sys.rules import CATALOGUE

REPO = Path(__file__).resolve().parent.parent
GENERATED = ("docs/rules", "docs/causes")
PAGES = sorted(
    page
    for page in [
        *REPO.glob("*.md"),
        *REPO.glob(".github/**/*.md"),
        *(REPO / "docs").rglob("*.md"),
        *(REPO / "ansible").rglob("*.md"),
    ]
    if ".ansible" not in page.parts
)
OWN_WORDS = {"check", "test", "bench", "coverage", "bundle", "wheelhouse", "new-rule", "docs", "gpu", "lint", "release", "site"}
"""What ./run does itself; every other word is a command of torchtune-sys."""


def commands(text: str) -> Iterator[str]:
    """Yield what is typed in console blocks and in code that begins with the program."""
    for block in re.findall(r"```console\n(.*?)```", text, re.S):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            if re.match(r"[\w-]*\$ ", line):
                yield line.partition("$ ")[2]
    yield from re.findall(r"(?<!`)`((?:sudo )?(?:\./run|torchtune-sys) [^`\n]+)`", text)


def invocations(command: str) -> Iterator[list[str]]:
    """Yield the arguments of each call of the tool in a shell command."""
    words = re.split(r"\s+(?:#|&&|\|\||\||>|<|;|…)(?:\s|$)", re.sub(r"'[^']*'|\"[^\"]*\"", "WORD", command).replace("; ", " ; "))
    for part in words:
        typed = part.partition(" #")[0].replace("…", "").split()
        for at, word in enumerate(typed):
            if re.fullmatch(r"(?:.*/)?torchtune-sys", word) and (
                at == 0 or typed[at - 1] in {"sudo", "srun", "--", "8", "gpu-07"}
            ):
                yield typed[at + 1 :]
                break
            if word == "./run" and (typed[at + 1 : at + 2] == ["check"] or not OWN_WORDS & set(typed[at + 1 : at + 2])):
                yield typed[at + 1 :]
                break


def fault(arguments: list[str]) -> str:
    """Return what click would say of these arguments before it starts anything, or nothing."""
    group: click.Command = cli
    context = click.Context(cli, info_name="torchtune-sys")
    rest = [word for word in arguments if word not in {"[OPTIONS]", "ANYTHING"}]
    while isinstance(group, click.Group):
        if not rest or rest[0].startswith("-") or rest[0].isupper():
            return ""
        try:
            found = group.get_command(context, rest[0])
        except click.UsageError:
            found = None
        if found is None:
            return f"no command {rest[0]}"
        group, rest = found, rest[1:]
    known = {option for param in group.get_params(context) for option in (*param.opts, *param.secondary_opts)}
    own = rest[: rest.index("--")] if "--" in rest else rest
    wrong = [word for word in own if word.startswith("--") and word.partition("=")[0] not in known]
    return f"{group.name}: no option {wrong[0]}" if wrong else ""


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if not str(page.relative_to(REPO)).startswith(GENERATED)],
    ids=lambda p: str(p.relative_to(REPO)),
)
def test_commands_that_a_page_names_exist(page: Path) -> None:
    typed = [call for command in commands(page.read_text(encoding="utf-8")) for call in invocations(command)]
    assert [f"{' '.join(call)}: {fault(call)}" for call in typed if fault(call)] == []


def test_a_command_that_does_not_exist_is_noticed() -> None:
    text = "```console\n$ sudo torchtune-sys aply\n$ ./run check --colour never | less\nhost$ ls && torchtune-sys plan --frm x\n```\n`./run explane x`"
    calls = [call for command in commands(text) for call in invocations(command)]
    assert [fault(call).split()[-1] for call in calls] == ["aply", "--colour", "--frm", "explane"]


def test_what_run_does_itself_is_what_its_usage_names() -> None:
    usage = (REPO / "run").read_text(encoding="utf-8").partition("TEXT\n")[0]
    assert set(re.findall(r"\./run ([a-z-]+)", usage)) >= OWN_WORDS


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.M):
        plain = re.sub(r"[`*]|\]\([^)]*\)|\[", "", heading).strip().lower()
        found.add(re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", plain)))
    return found


def broken(page: Path) -> Iterator[str]:
    """Yield each link of a page to a file, or to a heading, that is not there."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(encoding="utf-8"), flags=re.S)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        place = (page.parent / path).resolve() if path else page
        if not place.exists() or (anchor and place.suffix == ".md" and anchor not in anchors(place)):
            yield link


VERIFIED = REPO / "docs" / "verified.md"


def named_tests(text: str) -> Iterator[tuple[str, str]]:
    """Yield the file and the name of each test that a text names; a name alone is of the file that was named before it."""
    file = ""
    for words in re.findall(r"`([^`\s]+)`", text):
        path, _, name = words.rpartition("::")
        if path.endswith(".py"):
            file = path.removeprefix("tests/")
        if file and name.startswith("test_") and not name.endswith(".py"):
            yield file, name


def missing_tests(text: str) -> list[str]:
    """Return those that are not there."""

    def there(file: str, name: str) -> bool:
        place = REPO / "tests" / file
        return place.is_file() and f"def {name}(" in place.read_text(encoding="utf-8")

    return [f"{file}::{name}" for file, name in named_tests(text) if not there(file, name)]


def test_what_is_said_to_be_shown_is_shown() -> None:
    """Each false statement that was found names a test or a rule, and each named one is there."""
    text = VERIFIED.read_text(encoding="utf-8")
    table = [row for row in text.partition("| what was wrong | test |")[2].splitlines()[2:] if row.startswith("|")]
    assert missing_tests(text) == []
    rules = {rule.id for rule in CATALOGUE}
    unheld = [row for row in table if not list(named_tests(row)) and rules.isdisjoint(re.findall(r"`([a-z0-9-]+)`", row))]
    assert len(table) > 40 and unheld == []
    named = {word for row in table for word in re.findall(r"`([a-z0-9]+(?:-[a-z0-9]+)+)`", row)}
    assert named <= rules


def test_a_test_that_does_not_exist_is_noticed() -> None:
    text = "| x | `test_documents.py::test_links_lead_somewhere`, `test_no_such_thing` |\n| y | `cli/test_gone.py::test_links_lead_somewhere` |"
    assert missing_tests(text) == ["test_documents.py::test_no_such_thing", "cli/test_gone.py::test_links_lead_somewhere"]


def test_links_lead_somewhere() -> None:
    assert [f"{page.relative_to(REPO)}: {link}" for page in PAGES for link in broken(page)] == []


def test_a_broken_link_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# One `two`\n[x](b.md) [y](#one-two) [z](#three) `[c](d)`\n")
    assert list(broken(tmp_path / "a.md")) == ["b.md", "#three"]


def test_the_readme_promises_no_more_than_there_is() -> None:
    text = (REPO / "README.md").read_text(encoding="utf-8")
    rules = re.search(r"more than (\d+) rules", text, re.IGNORECASE)
    assert rules is not None and int(rules[1]) < len(CATALOGUE) and len(tables.rows("causes")) > 140


def test_the_page_of_inputs_names_what_may_be_pasted() -> None:
    page = (Path(__file__).parents[1] / "docs" / "inputs.md").read_text()
    missing = [name for name in evidence.READ.split(", ") if name.removeprefix("the ") not in page]
    assert not missing, f"docs/inputs.md does not name {', '.join(missing)} (_READERS of evidence/__init__.py)"


def test_the_page_of_formats_names_each() -> None:
    table = (REPO / "docs/formats.md").read_text(encoding="utf-8").partition("| `check --format` | for |")[2].partition("\n\n")[0]
    missing = set(check.FORMATS) ^ set(re.findall(r"`([a-z]+)`", table))
    assert not missing, (
        f"the table in docs/formats.md and FORMATS of cli/commands/check.py differ in {', '.join(sorted(missing))}"
    )


OTHER_WORDS = {
    "could not be judged": "could not be checked",
    "what would tell": "to find out",
    "would tell:": "to find out:",
    "keeps the clock": "synchronises the clock",
    "bear each other": "two incompatible runtimes are loaded",
    "container cable": "veth pair",
    "container's cable": "veth interface",
    "nobody's business": "environment allow-list",
    "becoming another program": "then exec",
    "last proof": "since the smoke test last passed",
}
"""What was said once, and the words that are used for it everywhere."""


def test_one_state_has_one_name_everywhere() -> None:
    texts = [
        path
        for top in ("src", "docs", "templates", "ansible", "man")
        for path in (REPO / top).rglob("*")
        if path.suffix in (".py", ".md", ".j2", ".toml", ".csv", ".json", ".yml", ".1") and "mutation" not in path.name
    ]
    said = {path: " ".join(path.read_text(errors="replace").lower().split()) for path in [*texts, REPO / "README.md"]}
    found = [
        f"{path.relative_to(REPO)}: {old!r}, say {new!r}"
        for path, text in said.items()
        for old, new in OTHER_WORDS.items()
        if old in text
    ]
    assert len(said) > 900 and not found, "\n".join(found)
