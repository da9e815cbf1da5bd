"""Mutation testing of ``rules/`` with mutmut, and a table of the mutants that no test noticed.

    pip install --group mutation          (beside the test group)
    python scripts/mutate_rules.py [FAMILY …] [--keep DIR]

mutmut leaves decorated functions alone, and every rule is one. So a scratch copy of the project is made in which
``@rule(…) def name`` reads ``def _judge_name`` and ``name = rule(…)(_judge_name)``, and mutmut runs there over the tests
in ``tests/rules``. A survivor whose change touches only the text that people read is counted apart from those that
change what is judged; the latter are printed one by one.
"""

from __future__ import annotations

import argparse
import ast
import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent
NOT_FOR_MUTANTS = {"test_catalogue.py"}
"""Judges the whole catalogue for every recorded host: each mutant would wait for all of it."""
CONFIG = """
[tool.mutmut]
paths_to_mutate = ["src/torchtune_sys/rules/"]
tests_dir = [{tests}]
also_copy = ["src/torchtune_sys", "tests"]
"""


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


def prepare(scratch: Path) -> None:
    for name in ("src", "tests"):
        shutil.copytree(REPO / name, scratch / name, ignore=shutil.ignore_patterns("__pycache__"))
    tests = sorted(path.name for path in (REPO / "tests/rules").glob("test_*.py") if path.name not in NOT_FOR_MUTANTS)
    config = CONFIG.format(tests=", ".join(f'"tests/rules/{name}"' for name in tests))
    (scratch / "pyproject.toml").write_text((REPO / "pyproject.toml").read_text() + config)
    for module in (scratch / "src/torchtune_sys/rules").glob("*.py"):
        module.write_text(undecorated(module.read_text()))


def mutmut(scratch: Path, *arguments: str) -> str:
    program = Path(sys.executable).with_name("mutmut")
    run = subprocess.run([program, *arguments], cwd=scratch, capture_output=True, text=True)
    if run.returncode and arguments[0] == "run":
        print(run.stdout[-3000:], run.stderr[-2000:], file=sys.stderr)
    return run.stdout


def only_text(diff: str) -> bool:
    """Whether the changed lines differ in nothing but string literals."""
    return _skeleton(diff, "-") == _skeleton(diff, "+")


def _skeleton(diff: str, sign: str) -> list[str]:
    code = "".join(
        line[1:].strip() + "\n" for line in diff.splitlines() if line.startswith(sign) and not line.startswith(sign * 3)
    )
    parts: list[str] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
                continue
            parts.append("TEXT" if token.type == tokenize.STRING else token.string)
    except (tokenize.TokenError, IndentationError):
        parts.append(re.sub(r"\"[^\"]*\"", "TEXT", code))
    return parts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    scratch = args.keep or Path(tempfile.mkdtemp())
    prepare(scratch)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    mutmut(scratch, "run", *(f"torchtune_sys.rules.{family}.*" for family in args.families))
    statuses = dict(re.findall(r"^\s*(\S+): ([\w ]+)$", mutmut(scratch, "results", "--all", "true"), re.MULTILINE))
    wanted = {name: status for name, status in statuses.items() if not args.families or name.split(".")[2] in args.families}
    print(dict(Counter(wanted.values())))
    text = 0
    for name in sorted(name for name, status in wanted.items() if status == "survived"):
        diff = mutmut(scratch, "show", name)
        if only_text(diff):
            text += 1
        else:
            print(f"\n{name}")
            print("\n".join(line for line in diff.splitlines() if re.match(r"[-+](?![-+])", line)))
    print(f"\nsurvivors that change only text: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
