# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""From what each host answered to one report about all of them: plain data, Markdown, and a few lines for the terminal."""

from __future__ import annotations

import re
import typing as t

SCHEMA = "torchtune-sys/fleet/1"
SEVERITIES = ("error", "warning", "advice")
STATES = {
    "good": "no problem found",
    "findings": "with findings",
    "go": "where a job may start",
    "no-go": "where no job may start",
    "not-judged": "not judged",
    "failed": "failed",
    "unreachable": "not reached",
    "absent": "without an answer",
}
"""What became of a host, the best first."""
TRAINS_ON = {"gpu": "GPUs", "cpu": "CPU only", "no": "nothing", "unknown": "unknown"}
BAD = ("no-go", "not-judged", "failed", "unreachable", "absent")
_JUDGED_BY = ("headline", "user", "version", "can_train", "counts", "passed", "not_applicable", "proof", "findings", "unknown")
_OF_PREFLIGHT = ("verdict", "causes", "job", "bad", "absent", "links")
_HOSTS_SHOWN = 8


def host(
    name: str, result: t.Any, failure: str, applied: t.Any = None, change_failure: str = "", preflight: t.Any = None
) -> dict[str, t.Any]:
    """What one host answered: ``result`` of the check, ``failure`` of what came before it, ``applied`` of the changes and what failed in them."""
    alone = preflight is not None and not failure and (result is None or "headline" not in result)
    found = {"host": name, **({} if alone else _judged(result, failure))}
    if preflight is not None:
        told = _together(preflight)
        if alone or (told["state"] in BAD and found["state"] not in BAD):
            found.update(told)
        found["preflight"] = {key: preflight[key] for key in _OF_PREFLIGHT if key in preflight}
    if applied is not None:
        found["applied"] = {key: applied[key] for key in ("run", "changes", "waits") if key in applied}
    did = applied or {}  # none where what failed came before the module: a variable of the wrong type, a drain
    if found["state"] in ("good", "findings") and (did.get("failed") or did.get("unreachable") or change_failure):
        state = "unreachable" if did.get("unreachable") else "failed"
        words = _reason(did) if "msg" in did else _line(change_failure)
        found.update(state=state, reason=f"the changes: {words}")
    return found


def _judged(result: t.Any, failure: str) -> dict[str, t.Any]:
    if result is not None and result.get("unreachable"):
        return {"state": "unreachable", "reason": _reason(result)}
    if result is None or ("headline" not in result and "why" not in result and failure):
        return {"state": "failed" if failure else "absent", "reason": _line(failure) or "it was not asked, or never answered"}
    if "headline" not in result:
        why = result.get("why", "")
        state = "not-judged" if why in ("refused", "not-installed", "not-trusted") else "failed"
        return {"state": state, "why": why, "reason": _reason(result)}
    found = {"state": _state(result), **{key: result[key] for key in _JUDGED_BY}}
    return (
        {**found, "reason": _reason(result) or "a rule of severity error could not be checked"}
        if found["state"] in BAD
        else found
    )


def _together(result: t.Any) -> dict[str, t.Any]:
    """What the pre-flight of all hosts says of this one."""
    if result.get("unreachable"):
        return {"state": "unreachable", "reason": _reason(result)}
    if "verdict" not in result:
        return {"state": "failed", "reason": _reason(result) or "it never answered"}
    if result["verdict"] == "go":
        return {"state": "go"}
    told = [f"{one['cause']}: {one['seen']}" for one in result["causes"] if one["weight"] != "warning"]
    more = f" (and {len(told) - 1} more)" if len(told) > 1 else ""
    reason = _line(told[0] if told else result["headline"]) + more
    return {"state": "no-go" if result["verdict"] == "no-go" else "not-judged", "reason": reason}


def _reason(result: t.Any) -> str:
    """What Ansible puts before the module's own words tells nothing."""
    return re.sub(r"^((Task|Module|Action) failed[:.] ?)+", "", _line(result.get("msg", "")))


def _state(result: t.Mapping[str, t.Any]) -> str:
    if result.get("status") == 4 or (result.get("failed") and result.get("why") == "findings"):  # torchtune_sys_fail_on
        return "failed"
    if not result["judged"]:
        return "not-judged"
    return "findings" if result["findings"] else "good"


def fleet(hosts: list[dict[str, t.Any]], time: str, differences: t.Mapping[str, t.Any] | None = None) -> dict[str, t.Any]:
    """The document: hosts in their order, each rule with the hosts that say the same of it, and what differs between hosts.

    ``differences`` is the document of compare, or why there is none; None where it was not asked.
    """
    rules: dict[tuple[t.Any, ...], dict[str, t.Any]] = {}
    for one in hosts:
        for finding in one.get("findings", ()):
            same = {key: finding[key] for key in ("rule", "severity", "cause", "title", "fix")}
            rule = rules.setdefault((*list(same.values())[:-1], *same["fix"]), {**same, "hosts": []})
            rule["hosts"].append(one["host"])
    worst = sorted(rules.values(), key=lambda rule: (SEVERITIES.index(rule["severity"]), -len(rule["hosts"]), rule["rule"]))
    counts = {state: sum(one["state"] == state for one in hosts) for state in STATES}
    counts["cannot_train"] = sum(one.get("can_train") == "no" for one in hosts)
    document = {"schema": SCHEMA, "time": time, "summary": {"hosts": len(hosts), **counts}, "rules": worst, "hosts": hosts}
    return document if differences is None else {**document, "differences": differences}


def reasons(hosts: t.Sequence[t.Mapping[str, t.Any]]) -> dict[str, str]:
    """Why each host that is bad is, in one line."""
    return {one["host"]: f"{STATES[one['state']]}: {one['reason']}" for one in hosts if one["state"] in BAD}


def headline(document: t.Mapping[str, t.Any]) -> str:
    """One line about all hosts."""
    counts = document["summary"]
    told = [f"{counts[state]} {words}" for state, words in STATES.items() if counts[state]]
    unable = f"; training does not work on {counts['cannot_train']}" if counts["cannot_train"] else ""
    return f"{counts['hosts']} host{'' if counts['hosts'] == 1 else 's'}: {', '.join(told) or 'none'}{unable}"


def text(document: t.Mapping[str, t.Any], differs: str = "") -> list[str]:
    """Lines for a terminal: what is bad, by rule and by host, and what differs, as compare says it."""
    lines = [headline(document)]
    for rule in document["rules"]:
        lines.append(f"{rule['severity']:<8} {rule['rule']}: {_line(rule['title'])} [{_few(rule['hosts'])}]")
    for one in document["hosts"]:
        if one["state"] in BAD:
            lines.append(f"{STATES[one['state']]}: {one['host']}: {one['reason']}")
    if "why" in document.get("differences", ()):
        lines.append(f"what differs between hosts was not asked: {document['differences']['why']}")
    return [*map(_printable, lines), *(line for line in differs.splitlines() if line.strip())]


def markdown(document: t.Mapping[str, t.Any], differs: str = "") -> str:
    """``differs``: the page of compare."""
    rows = [f"# {_cell(headline(document))}", "", document["time"], ""]
    rows += [
        "| host | state | trains on | errors | warnings | advice | could not be checked | judged as | tool |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    rows += [_row(one) for one in document["hosts"]]
    if document["rules"]:
        rows += ["", "## Findings", ""]
        for rule in document["rules"]:
            rows += [f"- **{rule['severity']}** `{rule['rule']}`: {_cell(rule['title'])} ({_cell(', '.join(rule['hosts']))})"]
            rows += [f"  - {_cell(words)}" for words in rule["fix"][:1]]
    bad = [one for one in document["hosts"] if one["state"] in BAD]
    if bad:
        rows += ["", "## Bad, or not judged", ""]
        rows += [f"- {_cell(one['host'])} ({STATES[one['state']]}): {_cell(one['reason'])}" for one in bad]
    if differs:
        rows += [
            "",
            "## What differs between hosts",
            "",
            *(line.lstrip("# ") if line.startswith("# ") else line for line in differs.splitlines()),
        ]
    elif "why" in document.get("differences", ()):
        rows += ["", "## What differs between hosts", "", f"Not asked: {_cell(document['differences']['why'])}"]
    return "\n".join(rows) + "\n"


def _row(one: t.Mapping[str, t.Any]) -> str:
    if "counts" not in one:
        return f"| {_cell(one['host'])} | {STATES[one['state']]} | | | | | | | |"
    cells = [
        _cell(one["host"]),
        STATES[one["state"]],
        TRAINS_ON[one["can_train"]],
        *(one["counts"][level] for level in SEVERITIES),
    ]
    cells += [len(one["unknown"]), _cell(one["user"]), _cell(one["version"])]
    return f"| {' | '.join(map(str, cells))} |"


def _few(hosts: list[str]) -> str:
    more = len(hosts) - _HOSTS_SHOWN
    return ", ".join(hosts[:_HOSTS_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _line(text_: t.Any) -> str:
    return _printable(" ".join(str(text_).split()))[:_LONGEST]


_LONGEST = 1000
"""Characters of a reason, or of a title."""


def _printable(words: str) -> str:
    return words if words.isprintable() else "".join(sign if sign.isprintable() else " " for sign in words)


def _cell(words: str) -> str:
    """Text of a host in a table: nothing in it is markup."""
    return (
        _printable(str(words))
        .replace("\\", "\\\\")
        .replace("|", "\\|")
        .replace("`", "'")
        .replace("<", "&lt;")
        .replace("[", "\\[")
    )
