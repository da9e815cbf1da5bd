"""What differs between hosts: a page for people however many hosts there are, Markdown, and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from torchtune_sys.model import codec
from torchtune_sys.model.comparison import Comparison, DifferenceWeight, Group, Odd
from torchtune_sys.model.patterns import pattern
from torchtune_sys.render import layout
from torchtune_sys.render.layout import Line, Style, clean, cut, line
from torchtune_sys.render.markdown import cell
from torchtune_sys.render.node_set import is_host_name, node_set
from torchtune_sys.render.report_head import size

_BUNDLES, _FACTS, _ROWS = 20, 6, 8
_VALUE, _HOSTS = 60, 60
_MANY = 2
"""A list of more differences than so many is told by their number."""
_AGAINST = {
    "majority": ("what is usual", "usually"),
    "golden": ("the golden one", "golden"),
    "before": ("what was before", "was"),
}
"""What hosts are compared with, and the word before its value."""


def text(value: Comparison, style: Style, *, whole: bool = False) -> str:
    """Return the comparison for a terminal; ``whole``: everything, however long."""
    return layout.render([*_lines(value, whole), *_next(value, style)], style)


def _lines(value: Comparison, whole: bool) -> Iterator[Line]:
    yield line((_headline(value), "bold"))
    if _is_nothing(value):
        yield line(
            "give what torchtune-sys snapshot --compact prints on two hosts or more, or --before, an earlier file of one",
            indent=2,
        )
    for kind in value.kinds if len(value.kinds) > 1 or value.incomparable else ():
        yield line(f"{kind.hosts:,} × {clean(kind.name)}", indent=2)
    yield from _odd(value, whole)
    for group in _shown_groups(value, whole):
        yield from _group(group, value, whole)
    for various in value.various[: None if whole else _ROWS]:
        sentence = f"{clean(various.fact)}: {various.values:,} values on {various.hosts:,} hosts"
        yield line(sentence, label=_label(various.weight), indent=2, hang=11)
    yield from _more(len(value.various), _ROWS, whole, "facts that nearly each host has otherwise")
    yield from _findings(value, whole)
    yield from _reasons("Not compared", [(item.host, item.why) for item in value.incomparable], whole)
    not_read, in_part = _unread(value)
    yield from _reasons("Not read", not_read, whole, "inputs")
    yield from _reasons("Read in part", in_part, whole)


def _unread(value: Comparison) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return what was not read, and what was read in part."""
    told: tuple[list[tuple[str, str]], list[tuple[str, str]]] = [], []
    for item in value.unread:
        told[item.partly].append((item.name, item.why))
    return told


def _is_nothing(value: Comparison) -> bool:
    return sum(kind.hosts for kind in value.kinds) < (2 if value.against == "majority" else 1)


def _headline(value: Comparison) -> str:
    if _is_nothing(value):
        return (
            f"nothing to compare: {value.hosts:,} host{'s' if value.hosts != 1 else ''} read, {len(_unread(value)[0]):,} not read"
        )
    found = dict.fromkeys(host for hosts, _ in bundles(value.odd) for host in hosts)
    odd = len(found)
    against = "the first" if _is_pair(value) else _AGAINST[value.against][0]
    verb = "differs" if odd == 1 else "differ"
    names = f" ({cut(node_set(clean(host) for host in found), _HOSTS)})" if found else ""
    parts = [
        f"{value.hosts:,} host{'s' if value.hosts != 1 else ''}",
        f"{f'{odd:,}' if odd else 'none'} {verb} from {against}{names}",
    ]
    divisions = {group.division for group in value.groups}
    if divisions:
        parts.append(f"{len(value.groups):,} groups")
    parts += [
        f"{len(items):,} {words}"
        for items, words in zip((value.incomparable, *_unread(value)), ("not compared", "not read", "read in part"), strict=True)
        if items
    ]
    return ": ".join(parts[:2]) + "".join(f", {part}" for part in parts[2:])


def _is_pair(value: Comparison) -> bool:
    """Of two hosts nothing is usual: the second is compared with the first."""
    return value.against == "majority" and value.hosts == 2


def _label(weight: DifferenceWeight) -> tuple[str, str]:
    return weight.value, "dim" if weight is DifferenceWeight.NOISE else weight.value


def bundles(odd: Sequence[Odd]) -> list[tuple[tuple[str, ...], list[Odd]]]:
    """Return the hosts that are odd in the same facts with the same values, and these facts; the heaviest first, then the most hosts."""
    of_fact: dict[tuple[str, str, str], list[Odd]] = {}
    for item in odd:
        of_fact.setdefault((item.fact, codec.line(item.value), codec.line(item.usual)), []).append(item)
    of_hosts: dict[tuple[str, ...], list[Odd]] = {}
    for same in of_fact.values():
        of_hosts.setdefault(tuple(item.host for item in same), []).append(same[0])
    return sorted(of_hosts.items(), key=lambda item: (item[1][0].weight.rank, -len(item[0]), item[0]))


def _odd(value: Comparison, whole: bool) -> Iterator[Line]:
    found = bundles(value.odd)
    for hosts, facts in found[: None if whole else _BUNDLES]:
        yield line((_hosts(hosts, whole), "bold"), label="", indent=0, hang=2)
        same = _alike(facts, "the first:" if _is_pair(value) else _AGAINST[value.against][1])
        for sentence, items in same[: None if whole else _FACTS]:
            names = [clean(item.fact) for item in items]
            heavy = items[0].weight in (DifferenceWeight.ERROR, DifferenceWeight.WARNING)
            rules = (
                items[0].rules[:2] if heavy and items[0].value is not None else ()
            )  # who reads an entry's fields says nothing of its absence
            readers = f"  ({', '.join(rules)})" if rules else ""
            yield line(
                f"{', '.join(names) if whole else _few(names)}: {sentence}{readers}",
                label=_label(items[0].weight),
                indent=2,
                hang=11,
            )
        yield from _more(sum(len(items) for _, items in same[_FACTS:]), 0, whole, "facts", 11)
    yield from _more(len(found), _BUNDLES, whole, "sets of hosts that differ")


def _alike(facts: Sequence[Odd], word: str) -> list[tuple[str, list[Odd]]]:
    """Return what is told in one line: facts that differ in the same way, as the driver's version that five places tell."""
    found: dict[tuple[DifferenceWeight, str], list[Odd]] = {}
    for item in facts:
        value, usual = _said(item.fact, item.value, item.usual)
        found.setdefault((item.weight, difference(value, usual, word)), []).append(item)
    return [(sentence, items) for (_, sentence), items in found.items()]


def _next(value: Comparison, style: Style) -> Iterator[Line]:
    """Yield what to run now, for the host that is told first."""
    for hosts, facts in bundles(value.odd)[:1]:
        if facts[0].weight is not DifferenceWeight.NOISE and is_host_name(hosts[0]):
            yield line(
                f"ssh {hosts[0]} {style.program} check",
                (" (says what is wrong there, and what to do)", "dim"),
                label=("next", "bold"),
                indent=2,
                hang=11,
            )


def _hosts(hosts: Sequence[str], whole: bool, noun: str = "hosts") -> str:
    names = node_set(clean(host) for host in hosts)
    if len(hosts) == 1:
        return names  # never cut: what tells one file from another stands at the end of its path
    return f"{len(hosts):,} {noun}: {names if whole else cut(names, _HOSTS)}"


def _more(count: int, limit: int, whole: bool, what: str, indent: int = 2) -> Iterator[Line]:
    if not whole and count > limit:
        yield line((f"… and {count - limit:,} more {what} (--all shows them)", "dim"), indent=indent)


def difference(value: Any, usual: Any, word: str = "usually") -> str:
    """Return two values in words, of long ones what differs.

    >>> difference("2.6.0", "2.7.1"), difference(["a", "b"], ["a", "c"]), difference(None, True), difference({"$missing": "crashed"}, True)
    ('2.6.0 (usually 2.7.1)', 'has b, lacks c', 'not there', '(crashed) (usually read)')
    """
    if isinstance(value, list) and isinstance(usual, list):
        has = [_short(item) for item in value if item not in usual]
        lacks = [_short(item) for item in usual if item not in value]
        if has or lacks:
            return ", ".join(f"{verb} {_few(items)}" for verb, items in (("has", has), ("lacks", lacks)) if items)
        return f"the same in another order: {_short(value)}"
    if value is None and usual is True:
        return "not there"
    if value is True and usual is None:
        return "only here"
    if usual is True and isinstance(value, dict):  # a whole family, or a list, that nobody could read
        return f"{_short(value)} ({word} read)"
    return f"{_short(value)} ({word} {_short(usual)})"


def _limit(fact: str, value: Any) -> Any:
    """Return a value as people say it: a limit that is none."""
    return "unlimited" if value is None and fact.startswith("limits.limits[") else value


def _said(fact: str, value: Any, usual: Any) -> tuple[Any, Any]:
    """Return both as people say them; bytes in larger units, where these tell them apart.

    >>> _said("memory.total_bytes", 1 << 40, 1 << 36), _said("memory.total_bytes", 1 << 40, (1 << 40) + 1)
    (('1 TiB', '64 GiB'), (1099511627776, 1099511627777))
    """
    if fact.endswith("_bytes") and isinstance(value, int) and isinstance(usual, int):
        sizes = size(value), size(usual)
        return sizes if sizes[0] != sizes[1] and abs(value - usual) * 100 > usual else (value, usual)
    return _limit(fact, value), _limit(fact, usual)


def _few(items: list[str]) -> str:
    return ", ".join(items) if len(items) <= _MANY else f"{', '.join(items[:_MANY])} and {len(items) - _MANY} more"


def _short(value: Any, other: Any = "") -> str:
    """``other``: what it is held against; of an entry that one lacks, only whether it is there is told."""
    if (value is None and other is True) or (value is True and other is None):
        return "there" if value else "not there"
    if isinstance(value, Mapping) and "$missing" in value:
        return f"({value['$missing']})"
    if value is None:
        return "none"
    return cut(value if isinstance(value, str) and value else codec.line(value).strip(), _VALUE)


def _shown_groups(value: Comparison, whole: bool) -> Iterable[list[Group]]:
    divisions: dict[int, list[Group]] = {}
    for group in value.groups:
        divisions.setdefault(group.division, []).append(group)
    return list(divisions.values())[: None if whole else _ROWS]


def _group(groups: list[Group], value: Comparison, whole: bool) -> Iterator[Line]:
    facts = groups[0].facts
    yield line((f"{len(groups)} groups that differ in {len(facts):,} fact{'s' if len(facts) != 1 else ''}", "bold"))
    letters = [_letters(place) for place in range(len(groups))]
    shown = groups[: None if whole else _ROWS]
    for letter, group in zip(letters, shown, strict=False):
        yield line(f"{letter}: {_hosts(group.hosts, whole)}", indent=2, hang=5)
    yield from _more(len(groups), _ROWS, whole, "groups")
    values = [{fact.fact: fact.value for fact in group.facts} for group in shown]
    same: dict[tuple[DifferenceWeight, str], list[str]] = {}
    for fact in facts:
        told = [_limit(fact.fact, found.get(fact.fact)) for found in values]
        there = all(value is None or value is True for value in told)  # an entry of a list, or not
        members = "; ".join(
            f"{letter} {_short(value, (value is None or None) if there else '')}"
            for letter, value in zip(letters, told, strict=False)
        )
        same.setdefault((fact.weight, members), []).append(clean(fact.fact))
    for (weight, members), names in list(same.items())[: None if whole else _ROWS]:
        yield line(f"{', '.join(names) if whole else _few(names)}: {members}", label=_label(weight), indent=2, hang=11)
    yield from _more(sum(map(len, list(same.values())[_ROWS:])), 0, whole, "facts", 11)


def _letters(place: int) -> str:
    return (_letters(place // 26 - 1) if place >= 26 else "") + chr(ord("A") + place % 26)


def _findings(value: Comparison, whole: bool) -> Iterator[Line]:
    if value.findings:
        yield line(("What check finds on them", "bold"))
    for item in value.findings[: None if whole else _ROWS]:
        yield line(f"{item.rule}: {_hosts(item.hosts, whole)}", label=_label(item.weight), indent=2, hang=11)
    yield from _more(len(value.findings), _ROWS, whole, "rules")


def _reasons(title: str, items: Sequence[tuple[str, str]], whole: bool, noun: str = "hosts") -> Iterator[Line]:
    reasons: dict[str, list[str]] = {}
    for name, why in items:
        reasons.setdefault(why, []).append(name)
    if reasons:
        yield line((title, "bold"))
    for why, names in list(reasons.items())[: None if whole else _ROWS]:
        yield line(f"{_hosts(names, whole, noun)}: {clean(why)}", indent=2, hang=4)
    yield from _more(len(reasons), _ROWS, whole, "reasons")


def markdown(value: Comparison) -> str:
    """Return a report for an issue or a wiki page; the facts in tables."""
    rows = [f"# {cell(_headline(value))}", ""]
    found = bundles(value.odd)
    if found:
        rows += ["| hosts | weight | fact | value | usual |", "|---|---|---|---|---|"]
        for hosts, facts in found:
            name = cell(_hosts(hosts, False))
            rows += [
                f"| {name} | {item.weight.value} | {cell(item.fact)} | {cell(_short(item.value, item.usual))} | {cell(_short(item.usual, item.value))} |"
                for item in facts
            ]
        rows.append("")
    for groups in _shown_groups(value, True):
        rows += [f"## {len(groups)} groups", "", "| hosts | fact | value | weight |", "|---|---|---|---|"]
        rows += [
            f"| {cell(_hosts(group.hosts, False))} | {cell(fact.fact)} | {cell(_short(fact.value))} | {fact.weight.value} |"
            for group in groups
            for fact in group.facts
        ]
        rows.append("")
    for title, items in (
        ("Nearly each host has another value", [(one.fact, f"{one.values} values") for one in value.various]),
        ("Found by check", [(one.rule, _hosts(one.hosts, False)) for one in value.findings]),
        ("Not compared", [(one.host, one.why) for one in value.incomparable]),
        ("Not read", _unread(value)[0]),
        ("Read in part", _unread(value)[1]),
    ):
        if items:
            rows += [f"## {title}", "", *(f"- {cell(name)}: {cell(why)}" for name, why in items), ""]
    return "\n".join(rows).rstrip("\n") + "\n"


def as_csv(value: Comparison) -> str:
    """Return one odd fact a row. No cell begins as a formula, whichever sign a spreadsheet takes for the separator."""
    into = io.StringIO()
    writer = csv.writer(into, lineterminator="\n")
    writer.writerow(("host", "fact", "value", "usual", "weight", "rules"))
    for item in value.odd:
        row = (item.host, item.fact, _whole(item.value), _whole(item.usual), item.weight.value, " ".join(item.rules))
        writer.writerow([_no_formula(clean(word)) for word in row])
    return into.getvalue()


def _whole(value: Any) -> str:
    return value if isinstance(value, str) else codec.line(value).strip()


def _no_formula(word: str) -> str:
    word = _BEHIND_A_SEPARATOR.sub(r"\1'", word)
    return f"'{word}" if word.lstrip()[:1] in _FORMULA else word


_FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")
"""Signs of full width too: spreadsheets of East Asian languages take them for the same."""
_BEHIND_A_SEPARATOR = pattern(rf"([;|]\s{{0,8}})(?=[{re.escape(''.join(_FORMULA))}])")
"""Where a program whose lists have another separator begins a cell, also within quotation marks: its file has none at the cell's start."""
