# Copyright: The torchtune-sys maintainers
# Licence: Apache-2.0 (see LICENSE)
"""Whether what a host answered has the form that the modules return: whoever is root there answers what he likes."""

from __future__ import annotations

import re
import typing as t

_MOST = 1000
"""Elements of a list: there are fewer rules."""
_LONGEST = 65536
"""Characters of a text: commands that help are the longest."""
_NAME = re.compile(r"[a-z0-9][a-z0-9.:_-]{0,99}")
_SEVERITY = ("error", "warning", "advice")
_FINDING = {"rule": _NAME, "severity": _SEVERITY, "cause": str, "title": str, "fix": [str]}
CHECK: dict[str, t.Any] = {
    "headline": str,
    "user": str,
    "version": str,
    "can_train": ("gpu", "cpu", "no", "unknown"),
    "judged": bool,
    "counts": dict.fromkeys(_SEVERITY, int),
    "passed": int,
    "not_applicable": int,
    "proof": str,
    "findings": [_FINDING],
    "unknown": [{"rule": _NAME}],
}
PREFLIGHT: dict[str, t.Any] = {
    "verdict": ("go", "no-go", "unknown"),
    "headline": str,
    "causes": [{"cause": str, "seen": str, "weight": str}],
}


def misshapen(result: t.Any, applied: t.Any, preflight: t.Any) -> str:
    """Return what in a host's answers is none of a module's; nothing where all is as it should be, or said that it failed."""
    for name, answer, mark, shape in (
        ("check", result, "headline", CHECK),
        ("pre-flight", preflight, "verdict", PREFLIGHT),
        ("changes", applied, "", {}),
    ):
        if answer is None:
            continue
        if not isinstance(answer, dict):
            return name
        wrong = _wrong(answer, shape) if mark in answer else ""
        if wrong:
            return f"{name}: {wrong}"
    return ""


def _wrong(answer: t.Mapping[str, t.Any], shape: t.Mapping[str, t.Any]) -> str:
    return next((name for name, part in shape.items() if name not in answer or not _fits(answer[name], part)), "")


def _fits(value: t.Any, shape: t.Any) -> bool:
    if isinstance(shape, type):
        return type(value) is shape and (shape is not str or len(value) <= _LONGEST)
    if isinstance(shape, dict):
        return isinstance(value, dict) and not _wrong(value, shape)
    if isinstance(shape, list):
        return isinstance(value, list) and len(value) <= _MOST and all(_fits(one, shape[0]) for one in value)
    return isinstance(value, str) and (value in shape if isinstance(shape, tuple) else shape.fullmatch(value) is not None)
