"""One rule or one cause in full, and the table of all rules."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from torchtune_sys.knowledge.causes import CauseRow
from torchtune_sys.model import actions
from torchtune_sys.model.rule import Rule
from torchtune_sys.render import layout
from torchtune_sys.render.doc_pages import cause_page, rule_page
from torchtune_sys.render.layout import Line, Style, line


def render(rule: Rule, style: Style) -> str:
    return layout.render(_lines(rule), style)


def _lines(rule: Rule) -> Iterator[Line]:
    yield line((rule.title, "bold"))
    cause = f", cause {rule.cause}" if rule.cause else ""
    yield line(f"{rule.id}: ", (rule.severity.value, rule.severity.value), f", family {rule.family}, {rule.status.value}{cause}")
    for row in paragraphs(rule.doc):
        yield line()
        heading, text = row
        if heading:
            yield line((heading, "heading"))
        for paragraph in text:
            yield line(paragraph, indent=2 if heading else 0)
    others = (*rule.superseded_by, *rule.explained_by)
    if others:
        yield line()
        yield line(f"Not reported where one of these reports the same: {', '.join(others)}.")
    if rule.params:
        yield line()
        yield line(("Parameters", "heading"))
    for param in rule.params:
        yield line(f"{param.name} = {shown(param.default)}", indent=2)
        yield line(param.doc, indent=6)
    if rule.asks:
        yield line()
        yield line(f"Judges by the parameters of these, too: {', '.join(other.id for other in rule.asks)}.")
    if rule.fix:
        yield line()
        yield line(("Fix", "heading"))
    for action in rule.fix:
        after = "" if action.needs is actions.Needs.NOTHING else f"; takes effect after: {action.needs.value}"
        yield line(f"{actions.text(action)} ", (f"[{actions.kind(action)}, {actions.trust(action)}{after}]", "dim"), indent=2)
    yield from _pages(rule_page(rule.id), cause_page(rule.cause) if rule.cause else "")


def cause(row: CauseRow, finders: tuple[Rule, ...], messages: tuple[str, ...], style: Style) -> str:
    """Return what a cause is, what helps, what proves it, the rules that find it, and messages that point to it."""
    page = cause_page(row.cause)
    cut = [*messages[:_MESSAGES], _MORE] if len(messages) > _MESSAGES and _is_here(page) else messages
    parts = [
        ("Fix", [row.fix]),
        ("To confirm", [row.confirm]),
        ("Rules that find it on a host", [f"{rule.id}: {rule.title}" for rule in finders]),
        ("Messages that point to it", [*cut]),
    ]
    lines = [line((row.title, "bold")), line(f"{row.cause}: a cause that diagnose, check, smoke and preflight name")]
    for heading, texts in parts:
        if any(texts):
            lines += [line(), line((heading, "heading")), *(line(text, indent=2, hang=4) for text in texts)]
    return layout.render([*lines, *_pages(page)], style)


def _pages(page: str, of_cause: str = "") -> Iterator[Line]:
    """Yield where more is written."""
    if _is_here(page):
        yield line()
        yield line("Page: ", page, f"; of its cause: {of_cause}" if of_cause else "")


def _is_here(page: str) -> bool:
    """Return whether there is such a page: in a checkout, not beside an installed tool."""
    return (_CHECKOUT / page).is_file()


_CHECKOUT = Path(__file__).parents[3]
_MESSAGES = 12
_MORE = "… and more, on its page"


def shown(value: object) -> str:
    """Return a default as a configuration file would write it (TOML)."""
    return str(value).lower() if isinstance(value, bool) else (f'"{value}"' if isinstance(value, str) else str(value))


HEADINGS = ("Why it matters", "When to leave it", "References")


def paragraphs(doc: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the summary (heading ``""``), then each section of a rule's docstring with its paragraphs.

    An underline below a heading is not text; each reference stays a line of its own (one that is longer goes on in lines indented deeper).

    >>> list(paragraphs("A defect.\\n\\n    References\\n    nfs(5)\\n    a manual (which goes on\\n        in the next line)\\n"))
    [('', ['A defect.']), ('References', ['nfs(5)', 'a manual (which goes on in the next line)'])]
    """
    first, _, rest = doc.strip().partition("\n")
    lines = [first, *textwrap.dedent(rest).splitlines()]
    heading, rows = "", list[str]()
    for row in lines:
        if row.strip().rstrip(":") in HEADINGS:
            yield heading, _joined(rows, keep=heading == HEADINGS[-1])
            heading, rows = row.strip().rstrip(":"), []
        elif set(row.strip()) != {"-"}:
            rows.append(row)
    yield heading, _joined(rows, keep=heading == HEADINGS[-1])


def _joined(rows: list[str], *, keep: bool) -> list[str]:
    if keep:
        return [row.strip() for row in re.sub(r"\n +", " ", textwrap.dedent("\n".join(rows))).splitlines() if row.strip()]
    blocks = "\n".join(row.strip() for row in rows).strip().split("\n\n")
    return [block.replace("\n", " ").strip() for block in blocks if block.strip()]


def table(rules: tuple[Rule, ...], style: Style) -> str:
    """Return the rules by family, with severity and title."""
    width = max((len(rule.id) for rule in rules), default=0)
    lines: list[Line] = []
    family = ""
    for rule in rules:
        if rule.family != family:
            family = rule.family
            lines.extend([line(), line((family, "heading"))] if lines else [line((family, "heading"))])
        label, severity = f"  {rule.severity.value.ljust(8)} ", rule.severity.value
        if style.width - len(label) - width < layout.ROOM:
            lines += [line(rule.id, label=(label, severity)), line(rule.title, indent=4)]
        else:
            label += f"{rule.id.ljust(width)}  "
            lines.append(line(rule.title, label=(label, severity), hang=len(label)))
    return layout.render(lines, style)
