# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""A host's report, as short as a fleet needs it: findings and what could not be checked in full, the rest counted."""

from __future__ import absolute_import, division, print_function

__metaclass__ = type

SCHEMA = "torchtune-sys/report/1"
FACTS = "torchtune-sys/facts/1"
SEVERITIES = ("error", "warning", "advice")


def brief(document):
    """The report without what passed and what does not apply."""
    results = document["results"]
    counts = document["summary"]
    return dict(
        host=_known(document["host"].get("name")) or "",
        user=user(document),
        version=document["tool"]["version"],
        can_train=counts.get("can_train", "unknown"),
        findings=_worst_first([_finding(result) for result in results if result["verdict"] == "fail"]),
        unknown=[_unknown(result) for result in results if result["verdict"] == "unknown"],
        crashed=[dict(rule=result["rule"], note=result["note"]) for result in results if result["verdict"] == "crashed"],
        passed=counts["pass"],
        not_applicable=counts["na"],
        proof=document.get("proof", ""),
    )


def user(document):
    """Whose session was judged: limits, environment and Python are this user's."""
    session = _known(document["host"].get("session")) or {}
    return session.get("user", "")


def count(findings):
    """How many findings of each severity."""
    return {level: len([one for one in findings if one["severity"] == level]) for level in SEVERITIES}


def at_least(findings, level):
    """The findings of this severity or a worse one."""
    if level == "never":
        return []
    return [one for one in findings if SEVERITIES.index(one["severity"]) <= SEVERITIES.index(level)]


def headline(found, judged):
    """One line about one host."""
    counts = count(found["findings"])
    told = ["%d %s%s" % (counts[level], level, "" if counts[level] == 1 else "s") for level in SEVERITIES if counts[level]]
    if not judged:
        told.append("not all could be judged")
    words = ", ".join(told) or "no problem found"
    if found["can_train"] == "no":
        words += ", and training does not work here"
    return "%s (judged as %s, %d passed, %d could not be checked)" % (
        words,
        found["user"] or "?",
        found["passed"],
        len(found["unknown"]),
    )


def _finding(result):
    failing = [item for item in result["evidence"] if item.get("verdict", "fail") == "fail"]
    return dict(
        rule=result["rule"],
        family=result["family"],
        severity=result["severity"],
        cause=result["cause"],
        title=result["title"],
        evidence=[dict(subject=item["subject"], seen=item["seen"], wanted=item["wanted"]) for item in failing],
        fix=[action["text"] for action in result["fix"] if "text" in action],
    )


def _unknown(result):
    whys = [item["why_unknown"] for item in result["evidence"] if item.get("why_unknown")]
    if result.get("why_unknown"):
        whys.insert(0, result["why_unknown"])
    why = whys[0] if whys else {}
    return dict(
        rule=result["rule"],
        severity=result["severity"],
        why=why.get("$missing", ""),
        detail=why.get("detail", "") or why.get("source", ""),
        remedy=why.get("remedy", ""),
    )


def _worst_first(findings):
    return sorted(findings, key=lambda one: SEVERITIES.index(one["severity"]))


def _known(value):
    """None for a fact that the tool could not read."""
    return None if isinstance(value, dict) and "$missing" in value else value
