"""Mutants that mutmut does not make: defaults of parameters, and the numbers and names of tables outside functions.

One entry at a time is changed in the process that runs the tests: a whole number by one (a large one by a hundredth), another number
by a hundredth (0 grows only), a text into ``XX…XX``. Left out are tables that only words are made of (mutation_text.py), and those that no
function names (fixes, and tables that other tables are made from).
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any, NamedTuple

import msgspec

PACKAGE = "torchtune_sys.rules"
LARGE = 10_000
"""From here on one more or less is no edge that anybody set."""
NOT_TABLES = {"RULES"}


class Change(NamedTuple):
    module: str
    place: str
    """``_TABLE`` with the key of the entry, or the rule's id with the name of the parameter."""
    before: str
    after: str
    users: frozenset[str]
    """Names of the functions that use it."""
    apply: Callable[[], None]


def changes(sources: dict[str, str], modules: list[str], only_words: Callable[[str, str], bool]) -> Iterator[Change]:
    """Of these modules of rules. ``sources``: of all of them, without mutants. ``only_words`` is asked for module and table."""
    rules = importlib.import_module(PACKAGE)
    loaded = {name: importlib.import_module(f"{PACKAGE}.{name}") for name in sources}
    trees = {name: ast.parse(source) for name, source in sources.items()}
    named = {name: _names_by_function(tree) for name, tree in trees.items()}
    for module in modules:
        for table in _tables(trees[module]):
            if table not in NOT_TABLES and not only_words(module, table):
                yield from _of_table(module, table, loaded, named)
    for rule in rules.CATALOGUE:
        module = rule.judge.__module__.removeprefix(f"{PACKAGE}.")
        if module in modules:
            yield from _of_parameters(module, rule)


def _names_by_function(tree: ast.Module) -> dict[str, set[str]]:
    found = {}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            inside = list(ast.walk(node))
            found[node.name] = {n.id for n in inside if isinstance(n, ast.Name)} | {
                n.attr for n in inside if isinstance(n, ast.Attribute)
            }
    return found


def _tables(tree: ast.Module) -> Iterator[str]:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id


def _of_table(module: str, table: str, loaded: dict[str, ModuleType], named: dict[str, dict[str, set[str]]]) -> Iterator[Change]:
    value = getattr(loaded[module], table, None)
    holders = [(name, held) for name, held in loaded.items() if vars(held).get(table) is value]
    users = {
        f"{PACKAGE}.{name}.{function}"
        for name, functions in named.items()
        for function, names in functions.items()
        if table in names and (vars(loaded[name]).get(table) is value or _by_module(loaded, module, name, names))
    }
    if not users:
        return
    for where, before, after, changed in variants(value):
        apply = partial(_replace, [held for _, held in holders], table, changed)
        yield Change(module, f"{table}{where}", before, after, frozenset(users), apply)


def _by_module(loaded: dict[str, ModuleType], module: str, name: str, names: set[str]) -> bool:
    """Whether a function of module ``name`` uses ``module`` itself, as ``gates.JOBS`` does."""
    return any(vars(loaded[name]).get(other) is loaded[module] for other in names)


def _replace(holders: list[ModuleType], table: str, value: object) -> None:
    for holder in holders:
        setattr(holder, table, value)


def _of_parameters(module: str, rule: Any) -> Iterator[Change]:
    user = frozenset({f"{PACKAGE}.{module}.{rule.judge.__name__}"})
    for param in rule.params:
        for _, before, after, changed in variants(param.default):
            apply = partial(msgspec.structs.force_setattr, param, "default", changed)
            yield Change(module, f"{rule.id}({param.name})", before, after, user, apply)


def variants(value: Any) -> Iterator[tuple[str, str, str, Any]]:
    """Where inside ``value``, the entry before and after, and the whole value with that entry changed.

    >>> [found[3] for found in variants((4, "a"))]
    [(5, 'a'), (3, 'a'), (4, 'XXaXX')]
    >>> [found[:3] for found in variants({"a": (True, 0.5)})]
    [('', "'a'", "'XXaXX'"), ("['a']", '0.5', '0.505'), ("['a']", '0.5', '0.495')]
    """
    if isinstance(value, bool):
        return
    if isinstance(value, (int, float)):
        step = value / 100 if isinstance(value, float) else value // 100 if abs(value) >= LARGE else 1
        for changed in (value + step, value - step) if value else (value + 1,):
            yield "", repr(value), repr(round(changed, 9)), changed
    elif type(value) is str:
        yield "", repr(value), repr(f"XX{value}XX"), f"XX{value}XX"
    elif isinstance(value, (tuple, list)):
        for at, item in enumerate(value):
            label = f"[{item[0]!r}]" if isinstance(item, tuple) and item and isinstance(item[0], str) else ""
            for where, before, after, changed in variants(item):
                yield label + where, before, after, type(value)([*value[:at], changed, *value[at + 1 :]])
    elif isinstance(value, (set, frozenset)):
        for item in sorted(value, key=repr):
            for where, before, after, changed in variants(item):
                yield where, before, after, type(value)([*(value - {item}), changed])
    elif isinstance(value, dict):
        yield from _of_mapping(value)


def _of_mapping(value: dict[Any, Any]) -> Iterator[tuple[str, str, str, Any]]:
    for key, item in value.items():
        for where, before, after, changed in variants(key):
            yield where, before, after, {changed if k == key else k: v for k, v in value.items()}
        for where, before, after, changed in variants(item):
            yield f"[{key!r}]{where}", before, after, {**value, key: changed}
