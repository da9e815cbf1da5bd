"""Mutation testing of ``rules/`` with mutmut's mutants, and a page of those that no test noticed.

    pip install --group mutation                                  (beside the test group)
    python scripts/mutate_rules.py [MODULE-PREFIX …] [--write]    (--write: all modules, docs/mutation.md)

A scratch copy of the project is made in which ``@rule(…) def name`` reads ``def _judge_name`` and
``name = rule(…)(_judge_name)``, since mutmut leaves decorated functions alone and every rule is one. mutmut makes the
mutants; those that change nothing but words are left out before they run (mutation_text.py), the rest run in forks of one
pytest process (mutation_run.py), and after them those of tables and parameters, which mutmut does not make (mutation_tables.py). Survivors that were looked at are explained in mutation_survivors/, a file per family of
rules: ``[[reason]]`` with ``kind`` (words: changes only what people read; equivalent: no input tells it apart; accepted:
could be told apart, and why it is not tested), ``why``, and ``mutants``, the keys as they are printed here. A key holds the
text of the changed line, so that the explanation outlives a change elsewhere. Exit status 1: a survivor without explanation.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import libcst as cst
import pytest
import tomllib
from mutation_run import SURVIVED, UNTESTED, Mutants, Switch
from mutation_tables import Change, changes
from mutation_text import Words, judges
from mutmut.mutation.data import LineSpan
from mutmut.mutation.file_mutation import Mutation, combine_mutations_to_source, create_mutations

REPO = Path(__file__).resolve().parent.parent
EXPLAINED = sorted(Path(__file__).with_name("mutation_survivors").glob("*.toml"))
PAGE = REPO / "docs/mutation.md"
NOT_FOR_MUTANTS = {"test_catalogue.py"}
"""Judges the whole catalogue for every recorded host; mutation_verdicts.py asks each host about its own rule."""
ALSO = ("tests/rules/mutation_verdicts.py", "tests/cli/test_selection.py")
"""The latter: profiles are chosen on the command line."""
HASTE = """

_fresh = load
_kept = {}


def load(name, **overlay):
    key = name, repr(overlay)
    if key not in _kept:
        _kept[key] = _fresh(name, **overlay)
    return _kept[key]


class judge(dict):
    def __init__(self, seen):
        super().__init__(RULES)
        self.seen = seen

    def __getitem__(self, rule_id):
        return judge_one(self.seen, rule_id)

    def values(self):
        return [self[rule_id] for rule_id in self]

    def items(self):
        return [(rule_id, self[rule_id]) for rule_id in self]
"""
"""Laid over tests/conftest.py: facts do not depend on rules, so a recorded host is looked at once for all mutants; and of the
whole catalogue only those rules are asked whose results a test looks at."""


class Mutant(NamedTuple):
    module: str
    function: str
    name: str
    """``torchtune_sys.rules.<module>.<function>__mutmut_<n>``, or ``table:<n>``"""
    line: int
    before: str
    after: str

    @property
    def key(self) -> str:
        return f"{self.module}.{self.function}: {self.before} -> {self.after}"


def undecorated(source: str) -> str:
    """``source`` with every ``@rule(…)`` written as a call after the function."""
    lines = source.splitlines(keepends=True)
    for node in reversed(ast.parse(source).body):
        if not isinstance(node, ast.FunctionDef) or len(node.decorator_list) != 1:
            continue
        decorator = node.decorator_list[0]
        if not (isinstance(decorator, ast.Call) and isinstance(decorator.func, ast.Name) and decorator.func.id == "rule"):
            continue
        call = ast.get_source_segment(source, decorator)
        body = lines[node.lineno - 1 : node.end_lineno]
        body[0] = body[0].replace(f"def {node.name}(", f"def _judge_{node.name}(", 1)
        lines[decorator.lineno - 1 : node.end_lineno] = [*body, f"\n\n{node.name} = {call}(_judge_{node.name})\n"]
    return "".join(lines)


def prepare(scratch: Path, prefixes: list[str]) -> tuple[list[Mutant], int, list[str], Callable[[str, str], bool]]:
    """A copy of the project with all mutants of mutmut in it: these, how many were left out because they change only words, their
    modules, and whether a table of such a module makes only words."""
    for name in ("src", "tests"):
        shutil.copytree(REPO / name, scratch / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(REPO / name, scratch)
    with (scratch / "tests/conftest.py").open("a") as conftest:
        conftest.write(HASTE)
    made = {}
    others = []
    rules = scratch / "src/torchtune_sys/rules"
    for path in sorted(rules.rglob("*.py")):
        if not prefixes or module_name(rules, path).startswith(tuple(prefixes)):
            made[path] = create_mutations(str(path), undecorated(path.read_text()))
        else:
            others.append(cst.parse_module(undecorated(path.read_text())))
    words = Words([*others, *(module for module, *_ in made.values())])
    mutants: list[Mutant] = []
    left_out = 0
    for path, (module, mutations, classes, functions) in made.items():
        inside = [mutation for mutation in mutations if mutation.contained_by_top_level_function]
        kept: list[Mutation] = [mutation for mutation in inside if judges(mutation, words)]
        left_out += len(inside) - len(kept)
        mutated = combine_mutations_to_source(module, kept, classes, functions)
        path.write_text(mutated.code.replace("from mutmut.mutation.trampoline import", "from mutant_switch import"))
        mutants += described(
            module_name(rules, path), mutated.code.splitlines(), mutated.line_span_by_function_name, mutated.mutant_names
        )
    modules = {module_name(rules, path): module for path, (module, *_) in made.items() if path.stem != "__init__"}
    return mutants, left_out, list(modules), lambda name, table: words.only_words(modules[name], table)


def module_name(rules: Path, path: Path) -> str:
    """``cpu.frequency`` for rules/cpu/frequency.py: the module's name below ``torchtune_sys.rules``; that of a package is its folder's."""
    return ".".join(path.relative_to(rules).with_suffix("").parts).removesuffix(".__init__")


def of_tables(modules: list[str], only_words: Callable[[str, str], bool]) -> dict[str, tuple[Mutant, Change]]:
    """Mutants of tables and parameters, by name. The scratch copy is on the path."""
    rules = REPO / "src/torchtune_sys/rules"
    sources = {module_name(rules, path): path.read_text() for path in sorted(rules.rglob("*.py")) if path.stem != "__init__"}
    found = {}
    plain = {name: undecorated(source) for name, source in sources.items()}
    for number, change in enumerate(changes(plain, modules, only_words)):
        name = re.split(r"[\[(]", change.place)[0]
        begin = re.compile(rf'{re.escape(name)}\b|    id="{re.escape(name)}"')
        lines = enumerate(sources[change.module].splitlines(), 1)
        line = next((at for at, text in lines if begin.match(text)), 0)
        mutant = Mutant(change.module, change.place, f"table:{number}", line, change.before, change.after)
        found[mutant.name] = (mutant, change)
    return found


def described(module: str, code: list[str], spans: dict[str, LineSpan], names: list[str]) -> list[Mutant]:
    base = REPO / "src/torchtune_sys/rules" / module.replace(".", "/")
    source = (base / "__init__.py" if base.is_dir() else base.with_suffix(".py")).read_text().splitlines()
    starts = {line.split("(")[0].split()[1]: number for number, line in enumerate(source, 1) if re.match(r" *def ", line)}
    found = []
    for name in names:
        function = name.rpartition("__mutmut_")[0]
        old, new = (_body(code[spans[of].start - 1 : spans[of].end]) for of in (f"{function}__mutmut_orig", name))
        changed = [c for c in difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes() if c[0] != "equal"]
        before = " ".join(line.strip() for _, a, b, _, _ in changed for line in old[a:b])
        after = " ".join(line.strip() for _, _, _, a, b in changed for line in new[a:b])
        plain = function.removeprefix("x_").rpartition("\u01c1")[2].removeprefix("_judge_")
        line = starts.get(plain, 0) + 1 + (changed[0][1] if changed else 0)
        found.append(Mutant(module, plain, f"torchtune_sys.rules.{module}.{name}", line, before, after))
    return found


def _body(function: list[str]) -> list[str]:
    """The lines below ``def``."""
    return function[next(i for i, line in enumerate(function) if line.lstrip().startswith("def ")) + 1 :]


def arrive(scratch: Path) -> Switch:
    """From here on the scratch copy is what is imported and tested."""
    switch = Switch()
    sys.modules[switch.__name__] = switch
    sys.path.insert(0, str(scratch / "src"))
    os.chdir(scratch)
    return switch


def run(switch: Switch, mutants: list[Mutant], tables: dict[str, tuple[Mutant, Change]]) -> dict[str, str]:
    tests = [str(path) for path in sorted(Path("tests/rules").rglob("test_*.py")) if path.name not in NOT_FOR_MUTANTS]
    to_do = {name: (change.users, change.apply) for name, (_, change) in tables.items()}
    plugin = Mutants(switch, [*(mutant.name for mutant in mutants), *tables], to_do)
    pytest.main(["-p", "no:cacheprovider", "--tb=no", "--capture=no", *tests, *ALSO], plugins=[plugin])
    for test in plugin.broken:
        print("left out, for it fails without a mutant:", test)
    if len(plugin.outcome) != len(mutants) + len(tables):
        sys.exit("the tests did not run")
    return plugin.outcome


def explanations() -> dict[str, tuple[str, str]]:
    """Kind and reason by the key of the mutant."""
    groups = [group for path in EXPLAINED for group in tomllib.loads(path.read_text())["reason"]]
    return {key: (group["kind"], group["why"]) for group in groups for key in group["mutants"]}


def page(mutants: list[Mutant], outcome: dict[str, str], left_out: int, took_s: float) -> str:
    known = explanations()
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%h of %cs", "--", "src", "tests"], cwd=REPO, capture_output=True, text=True
    )
    counts = Counter(outcome.values())
    survivors = [m for m in mutants if outcome[m.name] in (SURVIVED, UNTESTED)]
    lines = [
        "# Mutation testing of the rules",
        "",
        "Written by `python scripts/mutate_rules.py --write`; do not edit. "
        f"State: {commit.stdout.strip()}, {took_s / 60:.0f} minutes on one core.",
        "",
        f"{len(mutants)} mutants ran, {sum(m.name.startswith('table:') for m in mutants)} of them of tables and parameters,"
        f" the others mutmut's: {counts['killed']} killed, {counts['timeout']} ran out of time (killed too), "
        f"{len(survivors)} survived ({1 - len(survivors) / max(len(mutants), 1):.1%} killed). "
        f"{left_out} more were left out before the run:",
        "",
        "- what only makes words: subject, seen, wanted and source of evidence, the text of `NotApplicable`, of `Missing` and of errors in what the user wrote,"
        " and variables"
        " and functions that are used there alone (found on the syntax tree, `scripts/mutation_text.py`);",
        "- the second and third variant of a string (lower and upper case) where the first (`XX…XX`) runs.",
        "",
        "mutmut does not touch what stands outside functions. Of that, the defaults of parameters and each entry of the tables that"
        " functions use are changed by `scripts/mutation_tables.py`, numbers up and down by one or by a hundredth; titles and fixes"
        " are not.",
        "The tests are those in `tests/rules` but for `test_catalogue.py` (it judges the whole catalogue for every host;"
        " `mutation_verdicts.py` asks each host about its own rule), and `tests/cli/test_selection.py` for the profiles.",
        "A test that reaches more than twelve modules of rules, or that needs the installed program, does not take part.",
        "",
        "| module | mutants | killed | out of time | survived |",
        "|---|---:|---:|---:|---:|",
    ]
    for module in sorted({m.module for m in mutants}):
        here = Counter(outcome[m.name] for m in mutants if m.module == module)
        alive = here["survived"] + here["untested"]
        lines.append(f"| {module} | {here.total()} | {here['killed']} | {here['timeout']} | {alive} |")
    by_reason: dict[tuple[str, str], list[Mutant]] = {}
    for mutant in survivors:
        by_reason.setdefault(known.get(mutant.key, ("open", "nobody has looked at these yet")), []).append(mutant)
    for kind, heading in HEADINGS.items():
        groups = {why: found for (its, why), found in by_reason.items() if its == kind}
        if groups:
            lines += ["", f"## {heading} ({sum(map(len, groups.values()))})"]
        for why, found in sorted(groups.items()):
            lines += ["", f"{why[0].upper()}{why[1:]}:", ""]
            lines += listed(found) if kind != "open" else folded(found)
    return "\n".join(lines) + "\n"


HEADINGS = {
    "words": "Survivors that change only words",
    "equivalent": "Equivalent: no input tells them apart",
    "accepted": "Accepted",
    "open": "Open",
}


def listed(found: list[Mutant]) -> list[str]:
    return [f"- `{m.module}.py:{m.line}` {m.function}: `{short(m.before, m.after)}`" for m in found]


def folded(found: list[Mutant]) -> list[str]:
    """By module, closed until one is opened."""
    lines = []
    for module in sorted({m.module for m in found}):
        here = [m for m in found if m.module == module]
        lines += ["<details>", f"<summary>{module} ({len(here)})</summary>", "", *listed(here), "", "</details>"]
    return lines


def short(before: str, after: str) -> str:
    """The change alone, with some of the line around it."""
    start = _alike(before, after)
    end = _alike(before[start:][::-1], after[start:][::-1])
    start, stop = max(start - 45, 0), max(end - 25, 0)
    cut = [text[start : len(text) - stop] for text in (before, after)]
    return " → ".join(("…" * bool(start) + text + "…" * bool(stop)).replace("`", "'") or "nothing" for text in cut)


def _alike(one: str, other: str) -> int:
    """Length of the common beginning."""
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prefixes", nargs="*", metavar="MODULE-PREFIX")
    parser.add_argument("--write", action="store_true", help="write docs/mutation.md")
    args = parser.parse_args()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        mutants, left_out, modules, only_words = prepare(Path(folder), args.prefixes)
        switch = arrive(Path(folder))
        tables = of_tables(modules, only_words)
        outcome = run(switch, mutants, tables)
        os.chdir(REPO)
    mutants += [mutant for mutant, _ in tables.values()]
    print(dict(Counter(outcome.values())), f"left out: {left_out}", f"{time.monotonic() - begin:.0f} s")
    known = explanations()
    new = [m for m in mutants if outcome[m.name] in (SURVIVED, UNTESTED) and m.key not in known]
    for m in new:
        print(f"{outcome[m.name]} {m.module}.py:{m.line} {m.key}")
    alive = {m.key for m in mutants if outcome[m.name] in (SURVIVED, UNTESTED)}
    for key in sorted(set(known) - alive) if not args.prefixes else ():
        print("explained, but does not survive any more:", key)
    if args.write:
        PAGE.write_text(page(mutants, outcome, left_out, time.monotonic() - begin))
    return bool(new)


if __name__ == "__main__":
    sys.exit(main())
