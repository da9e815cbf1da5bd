"""docs/rules/: a page for each rule, a page for each family, and an index of families."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from itertools import groupby

from torchtune_sys.model import actions
from torchtune_sys.model.rule import Rule, Severity, Status
from torchtune_sys.render.doc_pages import RULES, family_page, rule_page
from torchtune_sys.render.explain import paragraphs, shown
from torchtune_sys.rules import CATALOGUE


def pages() -> dict[str, str]:
    """Return the text of each page, by its path in the checkout."""
    families = {family: tuple(rules) for family, rules in groupby(CATALOGUE, key=lambda rule: rule.family)}
    return {
        f"{RULES}/README.md": _index(families),
        **{family_page(family): _family(family, rules) for family, rules in families.items()},
        **{rule_page(rule.id): page(rule) for rule in CATALOGUE},
    }


def about(family: str) -> str:
    """Return what a family judges: the first line of its package."""
    doc = importlib.import_module(f"torchtune_sys.rules.{family}").__doc__ or ""
    return doc.partition("\n")[0].strip()


def _index(families: dict[str, tuple[Rule, ...]]) -> str:
    rows = "".join(
        f"| [{family}](families/{family}.md) | {len(rules)} | {_errors(rules)} | {markdown(about(family))} |\n"
        for family, rules in families.items()
    )
    return (
        f"# Rules\n\n{len(CATALOGUE)} rules in {len(families)} families, a page each. `torchtune-sys explain RULE` prints the same text, "
        f"`torchtune-sys rules` the whole list.\n\n| family | rules | of severity error | judges |\n|---|---|---|---|\n{rows}"
    )


def _errors(rules: tuple[Rule, ...]) -> int:
    return sum(rule.severity is Severity.ERROR for rule in rules)


def _family(family: str, rules: tuple[Rule, ...]) -> str:
    rows = "".join(f"| {rule.severity.value} | [{rule.id}](../{rule.id}.md) | {_cell(rule.title)} |\n" for rule in rules)
    return (
        f"# Rules: {family}\n\n{markdown(about(family))}\n\n[All families](../README.md). Judge these alone: "
        f"`torchtune-sys check --select {family}`.\n\n| severity | rule | finding |\n|---|---|---|\n{rows}"
    )


def page(rule: Rule) -> str:
    """Return one rule's page."""
    texts = dict(paragraphs(rule.doc))
    parts = (
        _head(rule),
        _text("", texts),
        _text("Why it matters", texts),
        _fixes(rule),
        _text("When to leave it", texts),
        _params(rule),
        _others(rule),
        _commands(rule),
        _references(texts),
    )
    return "\n".join(line for part in parts for line in part)


def _head(rule: Rule) -> Iterator[str]:
    preview = ", preview" if rule.status is Status.PREVIEW else ""
    cause = f" · cause [{rule.cause}](../causes/{rule.cause}.md)" if rule.cause else ""
    yield f"# {markdown(rule.title)}\n"
    yield f"`{rule.id}` · {rule.severity.value}{preview} · family [{rule.family}](families/{rule.family}.md){cause}\n"


def _text(heading: str, texts: dict[str, list[str]]) -> Iterator[str]:
    if heading and texts.get(heading):
        yield f"## {heading}\n"
    yield from (f"{markdown(text)}\n" for text in texts.get(heading, ()))


def _references(texts: dict[str, list[str]]) -> Iterator[str]:
    if texts.get("References"):
        yield "## References\n"
        yield from (f"- {markdown(text)}" for text in texts["References"])
        yield ""


def _params(rule: Rule) -> Iterator[str]:
    if rule.params:
        yield "## Parameters\n\n| name | default | |\n|---|---|---|"
        yield from (f"| `{param.name}` | `{shown(param.default)}` | {_cell(param.doc)} |" for param in rule.params)
        yield ""
    if rule.asks:
        yield f"It judges by the parameters of {_linked(other.id for other in rule.asks)}, too.\n"


def _fixes(rule: Rule) -> Iterator[str]:
    if rule.fix:
        yield "## Fix\n"
    for action in rule.fix:
        after = "" if action.needs is actions.Needs.NOTHING else f"; takes effect after: {action.needs.value}"
        yield f"- {markdown(actions.text(action))} ({actions.trust(action)}{after})"
    if rule.fix:
        yield ""


def _others(rule: Rule) -> Iterator[str]:
    others = (*rule.superseded_by, *rule.explained_by)
    if others:
        yield f"## Reported in its place\n\nNot reported where one of these reports the same: {_linked(others)}.\n"


def _commands(rule: Rule) -> Iterator[str]:
    yield "## On the command line\n\n```console"
    yield f"$ torchtune-sys check --select {rule.id}    # judge this alone"
    yield f"$ torchtune-sys check --ignore {rule.id}    # leave it out"
    yield "```\n"


def _linked(ids: Iterator[str] | tuple[str, ...]) -> str:
    return ", ".join(f"[{other}]({other}.md)" for other in ids)


def _cell(text: str) -> str:
    return markdown(text).replace("|", "\\|")


def markdown(text: str) -> str:
    r"""Return plain text as Markdown: nothing in it is a tag or emphasis, and addresses are links.

    >>> print(markdown("see https://kernel.org/x_y, <pid> and *_bytes"))
    see <https://kernel.org/x_y>, &lt;pid&gt; and \*\_bytes
    """
    parts = re.split(r"(`[^`]+`|https?://[^\s,;)]*[^\s,;).])", text)
    return "".join(
        f"<{part}>" if part.startswith("http") else part if part.startswith("`") and len(part) > 1 else _escaped(part)
        for part in parts
    )


def _escaped(text: str) -> str:
    text = text.replace("<", "&lt;").replace(">", "&gt;").replace("*", "\\*").replace("[", "\\[").replace("`", "\\`")
    return re.sub(r"(?<!\w)_|_(?!\w)", r"\\_", text)
