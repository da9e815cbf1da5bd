"""Generate docs/causes/: a page for each cause, with the messages that point to it, the rules that find it, and the fix."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from torchtune_sys.gen.readable import alternatives
from torchtune_sys.knowledge import tables
from torchtune_sys.knowledge.messages import MessageCause, causes_of
from torchtune_sys.knowledge.operations import ERRORS
from torchtune_sys.knowledge.stated_words import filled
from torchtune_sys.render.doc_pages import CAUSES, cause_page
from torchtune_sys.rules import CATALOGUE

_FACTS = {
    "rule": "the rule [{0}](../rules/{0}.md) fails",
    "text": "the text also contains `{0}`",
    "var": "`{0}`",
    "family": "the message [{0}](#messages) is also present",
}
_HOLES = "Messages as the programs print them, with `{…}` for the parts that vary, and the source file of each.\n\n"
_LEGEND = (
    "`…` stands for any text. Such text is a *cause* if it has only this cause, a *hint* if it can have several, and *inventory* "
    "if it only describes the host.\n\n"
)
_SAID = (
    "A thing counts with a *fault* that is said of it where somebody puts the blame on it or, as possible, reports it; what is *done* with it, and a *setting*, where somebody says that it "
    "helped; a *claim* by itself. What is asked, denied, guessed or advised does not count.\n\n"
)
_FORMS = 12
"""Forms of a pattern that a page shows."""


def pages() -> dict[str, str]:
    """Return the text of each page, by its path in the checkout."""
    rows = tables.rows("causes")
    families = _families()
    found = {cause_page(row["cause"]): _page(row, families[row["cause"]]) for row in rows}
    links = "".join(f"| [{row['cause']}]({row['cause']}.md) | {row['title']} |\n" for row in rows)
    found[f"{CAUSES}/README.md"] = (
        "# Causes\n\n[diagnose](../diagnose.md), `check`, `smoke` and `preflight` name "
        f"{len(rows)} causes. Each page lists the messages that point to the cause.\n\n| cause | |\n|---|---|\n{links}"
    )
    return found


def _families() -> defaultdict[str, list[tuple[str, MessageCause]]]:
    """Return the families that stand for each cause."""
    found: defaultdict[str, list[tuple[str, MessageCause]]] = defaultdict(list)
    for family in dict.fromkeys(row["family"] for row in tables.rows("family_causes")):
        for cause in causes_of(family):
            found[cause.cause].append((family, cause))
    return found


def _page(row: dict[str, str], families: list[tuple[str, MessageCause]]) -> str:
    slug = row["cause"]
    parts = [f"# {row['title']}\n\n`{slug}`\n\n"]
    if row["fix"]:
        parts.append(f"**Fix**: {row['fix']}\n\n")
    if row["confirm"]:
        parts.append(f"**To confirm**: `{row['confirm']}`\n\n")
    if families:
        parts += ["## Messages\n\n", _HOLES, *_messages(families)]
    sentences = [each for each in tables.rows("sentences") if slug in each["cause"].split("|")]
    failed = [each for each in tables.rows("operation_errors") if slug in each["cause"].split("|")]
    if sentences or failed:
        parts += ["## Other text that points to it\n\n", _LEGEND, *map(_sentence, sentences), *map(_failed, failed), "\n"]
    stated = [each for each in tables.rows("stated_causes") if slug in each["cause"].split("|")]
    if stated:
        parts += ["## What people say of it\n\n", _SAID, *map(_stated, stated), "\n"]
    rules = [rule for rule in CATALOGUE if rule.cause == slug]
    if rules:
        parts += [
            "## Rules that find it on a host\n\n",
            *(f"- [{rule.id}](../rules/{rule.id}.md): {rule.title}\n" for rule in rules),
            "\n",
        ]
    return "".join(parts).rstrip() + "\n"


def _messages(families: list[tuple[str, MessageCause]]) -> Iterable[str]:
    patterns: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    for each in tables.rows("message_families"):
        patterns[each["family"]].append(each)
    for family, cause in families:
        for each in patterns[family]:
            yield f"- {each['program']}: `{_code(each['pattern'])}` ({_code(each['source'])})\n"
        yield f"\n  {_weight(cause)}\n\n"


def _weight(cause: MessageCause) -> str:
    """Return how much the messages are worth, and what decides."""
    said = [f"Confidence: *{cause.confidence}*"]
    for words, facts in (("only if", cause.only_if), ("certain if", cause.decided_by), ("not if", cause.unless)):
        if facts:
            said.append(f"{words} {' or '.join(map(_fact, facts))}")
    return "; ".join(said) + (f". {cause.fix[:1].upper()}{cause.fix[1:]}." if cause.fix else ".")


def _fact(fact: str) -> str:
    kind, _, what = fact.partition(":")
    return _FACTS[kind].format(_code(what))


def _sentence(row: dict[str, str]) -> str:
    program = f" from {row['program']}" if row["program"] else ""
    stage = {"": "", "any": "; in the smoke test"}.get(row["stage"], f"; in the smoke test's {row['stage']}")
    return f"- {_forms(row['pattern'])}{program} ({row['role']}{stage}; {row['source']})\n"


def _failed(row: dict[str, str]) -> str:
    """Return the operations that say it with an error, and their errors."""
    failed = [each for each in tables.rows("operations") if each["operation"] in row["operation"].split("|")]
    words = " · ".join(_forms(each["pattern"]) for each in failed)
    errors = " or ".join(ERRORS[name][1] for name in row["errors"].split("|"))
    return f"- {words}, then {errors} ({row['role']}; {row['source']})\n"


def _stated(row: dict[str, str]) -> str:
    shown = {
        "": row["subject"],
        "fault": row["fault"],
        "done": row["help"],
        "setting": row["setting"],
        "claim": row["claim"],
    }
    parts = (f"{name} {_forms(filled(words))}".strip() for name, words in shown.items() if words)
    return f"- {'; '.join(parts)} ({row['source']})\n"


def _forms(pattern: str) -> str:
    forms = alternatives(pattern)
    words = " · ".join(f"`{_code(each)}`" for each in forms[:_FORMS])
    return words if len(forms) <= _FORMS else f"{words} and {len(forms) - _FORMS} similar forms"


def _code(text: str) -> str:
    return text.replace("`", "'")
