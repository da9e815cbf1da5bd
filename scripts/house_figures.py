"""Print the figures of the code's shape: size, small files, class names with two meanings, twins, circles.

    python scripts/house_figures.py [CHECKOUT]

Arrows that run up are what lint-imports refuses ([tool.importlinter] in pyproject.toml).
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

SMALL, TWIN = 60, 12


def shape(node: ast.FunctionDef) -> str:
    """A function without its names, texts and numbers: what two copies have in common."""
    return " ".join(type(part).__name__ for part in ast.walk(ast.Module(body=node.body, type_ignores=[])))


def lines_of_code(node: ast.FunctionDef) -> int:
    """The lines of a function's body without its docstring."""
    body = node.body[1:] if ast.get_docstring(node) else node.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def imports(root: Path) -> dict[str, set[str]]:
    """Return module → the modules of the package that it imports, anywhere in it."""
    trees = {
        ".".join(path.relative_to(root.parent).with_suffix("").parts): ast.parse(path.read_text()) for path in root.rglob("*.py")
    }
    trees = {name.removesuffix(".__init__"): tree for name, tree in trees.items()}
    found: dict[str, set[str]] = {}
    for name, tree in trees.items():
        named = set()
        for node in _statements(tree):
            if isinstance(node, ast.Import):
                named |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inside = {f"{node.module}.{alias.name}" for alias in node.names}
                named |= {place if place in trees else node.module for place in inside}
        found[name] = (named & trees.keys()) - {name}
    return found


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield the statements of a module at any depth, and none of their expressions: imports are statements."""
    todo: list[ast.AST] = [tree]
    while todo:
        node = todo.pop()
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            todo += part if isinstance(part := getattr(node, name, ()), list) else ()


def circles(arrows: dict[str, set[str]]) -> list[set[str]]:
    """Return the groups of modules that import each other in a loop."""
    reached = {name: _reached(name, arrows) for name in arrows}
    loops = {frozenset(other for other in reached[name] if name in reached[other]) for name in arrows}
    return [set(loop) for loop in loops if len(loop) > 1]


def _reached(start: str, arrows: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        new = arrows[todo.pop()] - found
        found |= new
        todo += new
    return found


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else ".") / "src/torchtune_sys"
    folders: Counter[str] = Counter()
    rooms: Counter[str] = Counter()
    classes: dict[str, list[str]] = defaultdict(list)
    shapes: dict[str, list[str]] = defaultdict(list)
    longest: Counter[str] = Counter()
    lines = statements = small = 0
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        text = path.read_text()
        folders[str(Path(name).parent)] += 1
        lines += text.count("\n")
        small += text.count("\n") < SMALL
        for node in ast.walk(ast.parse(text)):
            statements += isinstance(node, ast.stmt)
            rooms[name.partition("/")[0]] += isinstance(node, ast.stmt)
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes[node.name].append(name)
            if isinstance(node, ast.FunctionDef) and (node.end_lineno or 0) - node.lineno + 1 >= TWIN:
                shapes[shape(node)].append(f"{name}:{node.name}")
                longest[shape(node)] = max(longest[shape(node)], lines_of_code(node))
    twice = {name: places for name, places in classes.items() if len(places) > 1}
    twins = [places for places in shapes.values() if len(places) > 1]
    real = [places for known, places in shapes.items() if len(places) > 1 and longest[known] >= TWIN]
    print(f"files {sum(folders.values())}, statements {statements}, lines {lines}, files under {SMALL} lines {small}")
    print("modules a folder: " + ", ".join(f"{folder} {count}" for folder, count in folders.most_common(12)))
    print(
        "statements a room: " + ", ".join(f"{room} {count:,}" for room, count in rooms.most_common() if not room.endswith(".py"))
    )
    print(f"public class names with two meanings {len(twice)}: {', '.join(sorted(twice))}")
    print(f"twins (same shape, {TWIN} lines or more) {len(twins)}: {'; '.join(' = '.join(places) for places in twins)}")
    print(
        f"of them with {TWIN} lines or more without the docstring {len(real)}: {'; '.join(' = '.join(places) for places in real)}"
    )

    loops = circles(imports(root))
    print(f"circles {len(loops)}: {'; '.join(' - '.join(sorted(loop)) for loop in loops)}")


if __name__ == "__main__":
    main()
