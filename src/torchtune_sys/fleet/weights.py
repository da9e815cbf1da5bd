"""The weight of a fact: the highest severity of the rules that read it.

What a rule reads is taken from its own code: the names of attributes and the texts in its functions and in those that they call. A fact
is read by a rule that names every step of the way to it (``gpu``, ``devices``, ``vbios``); a setting, limit or variable only by one that
names its key, too (``rp_filter`` of ``net.ipv4.conf.eth0.rp_filter``). tests/compare/test_weights.py holds this against what the rules really read on all recorded hosts.
"""

from __future__ import annotations

import dis
import re
import types
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

import msgspec

from torchtune_sys.model.comparison import DifferenceWeight
from torchtune_sys.model.rule import Rule
from torchtune_sys.model.snapshot import FAMILIES

_OURS = ("torchtune_sys.rules", "torchtune_sys.knowledge", "torchtune_sys.formats", "torchtune_sys.model")
_KEYED = ("session.env", "sysctl.settings", "limits.limits", "driver.module_params")
"""What is looked up by a key that the rule names."""
_STEP = re.compile(r"\[(?:[^\[\]]|\[[^\[\]]{0,256}\]){0,1024}\]")


_OF_SNAPSHOT = "s."
"""Stands before a family that is taken from a snapshot (``s.kernel``): a field of another family may have the same name (``system.kernel``)."""


class Readers:
    """The rules of a catalogue by what they read."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self._words = [(rule, frozenset(_words(rule))) for rule in rules]
        self._found: dict[tuple[frozenset[str], str], tuple[Rule, ...]] = {}

    def of(self, fact: str) -> tuple[Rule, ...]:
        """Return the rules that read ``network.interfaces[eth0].mtu``, or what lies below it; the worst first, of these those whose names say it, and that read little else."""
        family, *below = _STEP.sub("", fact).split(".")
        steps, key = frozenset((_OF_SNAPSHOT + family, *below)), _key(fact)
        if (steps, key) not in self._found:
            rules = (
                (rule.severity.rank, -_shared(rule.id, (family, *below, key)), len(words), rule.id, rule)
                for rule, words in self._words
                if family not in rule.measures_by
                and steps <= words
                and (not key or key in words or key.rpartition(".")[2] in words)
            )
            self._found[steps, key] = tuple(rule for *_, rule in sorted(rules, key=lambda found: found[:4]))
        return self._found[steps, key]

    def weight(self, fact: str) -> DifferenceWeight:
        readers = self.of(fact)
        return DifferenceWeight(readers[0].severity.value) if readers else DifferenceWeight.NOISE


def _shared(rule: str, steps: Iterable[str]) -> int:
    """Return how many words of the rule's name stand in those of the fact.

    >>> _shared("nvml-driver-library-mismatch", ("driver", "library_version"))
    2
    """
    fact = ".".join(steps)
    return sum(word in fact for word in rule.split("-") if len(word) > 2)


def _key(fact: str) -> str:
    """Return the key, of facts that are looked up by one.

    >>> _key("sysctl.settings[vm.swappiness].running"), _key("gpu.devices[3].vbios")
    ('vm.swappiness', '')
    """
    return next((fact[len(place) + 1 :].partition("]")[0] for place in _KEYED if fact.startswith(f"{place}[")), "")


def _words(rule: Rule) -> Iterator[str]:
    """All names and texts in the functions that judge, and in what they reach."""
    seen: set[int] = set()
    todo: list[Any] = [rule.judge, rule.applies]
    while todo:
        item = todo.pop()
        if item is None or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, str):
            yield item
        elif isinstance(item, types.FunctionType):
            if item.__module__.startswith(_OURS):
                names, reached = _of_function(item)
                yield from names
                todo += reached
        else:
            todo += _inside(item)


def _inside(item: Any) -> list[Any]:
    """Return what a table, a value or a class of ours holds."""
    if isinstance(item, dict):
        return [*item.keys(), *item.values()]
    if isinstance(item, (tuple, list, frozenset, set)):
        return list(item)
    if isinstance(item, Rule):
        return []  # asked for its parameters
    if isinstance(item, msgspec.Struct):
        return [getattr(item, name) for name in item.__struct_fields__]
    if isinstance(item, (staticmethod, classmethod)):
        return [item.__func__]
    if isinstance(item, property):
        return [item.fget]
    if isinstance(item, type) and item.__module__.startswith(_OURS):
        return [
            value for value in vars(item).values() if isinstance(value, (types.FunctionType, property, staticmethod, classmethod))
        ]
    wrapped = getattr(item, "__wrapped__", None)  # functools.cache
    return [wrapped] if wrapped is not None else []


def _of_function(function: types.FunctionType) -> tuple[set[str], list[Any]]:
    names, texts = _of_code(function.__code__)
    reached = [function.__globals__[name] for name in names if name in function.__globals__]
    modules = [item for item in reached if isinstance(item, types.ModuleType) and item.__name__.startswith(_OURS)]
    reached += [vars(module)[name] for module in modules for name in names if name in vars(module)]
    reached += [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    reached += [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return names | texts, reached


@lru_cache(None)
def _of_code(code: types.CodeType) -> tuple[set[str], set[str]]:
    """Return the names that the code uses, and its texts; of the functions inside it, too."""
    names, texts = _names(code), set()
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            inner_names, inner_texts = _of_code(constant)
            names |= inner_names
            texts |= inner_texts
        elif isinstance(constant, str):
            texts |= {constant, _OF_SNAPSHOT + constant} if constant in FAMILIES else {constant}
        elif isinstance(constant, (tuple, frozenset)):
            texts.update(item for item in constant if isinstance(item, str))
    return names, texts


def _names(code: types.CodeType) -> set[str]:
    """Return the names that it uses. What it takes from the snapshot ``s`` is told by ``s.NAME``, a family that is reached otherwise by both."""
    found, before = set(code.co_names), ""
    if found.isdisjoint(FAMILIES) or "s" not in (*code.co_varnames, *code.co_freevars):
        return found | {_OF_SNAPSHOT + name for name in found.intersection(FAMILIES)}
    found = set()
    for step in dis.get_instructions(code):
        name = step.argval
        if step.opname.startswith(("LOAD_ATTR", "LOAD_METHOD", "LOAD_GLOBAL", "LOAD_NAME", "IMPORT_FROM")):
            own = step.opname.startswith("LOAD_ATTR") and before == "s"
            found |= (
                {_OF_SNAPSHOT + name} if own and name in FAMILIES else {name, _OF_SNAPSHOT + name} if name in FAMILIES else {name}
            )
        elif name in code.co_names:
            found.add(name)
        loaded = name[-1] if isinstance(name, tuple) and name else name  # two at once, since Python 3.13
        before = loaded if isinstance(loaded, str) and step.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) else ""
    return found


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
