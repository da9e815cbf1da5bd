"""Messages in Python sources: what ``raise``, warnings and loggers say."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator

from catalogue.c_calls import formatted

_SEVERITY = {
    "warn": "warning", "warning": "warning", "error": "error", "exception": "error", "critical": "error", "info": "info", "debug": "info",
    "_warn_once": "warning", "fail": "error",
}  # fmt: skip


def messages(source: str) -> Iterator[tuple[str, str]]:
    """Each message: severity and template.

    >>> list(messages('raise ValueError(f"port {port} of 3")'))
    [('error', 'port {} of 3')]
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    constants = _constants(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            for argument in node.exc.args[:2]:
                text = _text(argument, constants)
                if text:
                    yield "error", text
        elif isinstance(node, ast.Assert) and node.msg is not None:
            text = _text(node.msg, constants)
            if text:
                yield "error", text
        elif isinstance(node, ast.Call) and isinstance(node.func, (ast.Attribute, ast.Name)) and node.args:
            name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
            if name in _SEVERITY:
                text = _text(node.args[0], constants)
                if text:
                    yield _SEVERITY[name], formatted(text) if "%" in text else text


def _constants(tree: ast.Module) -> dict[str, str]:
    """The texts that stand in names of the module."""
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            text = _text(node.value, {})
            if text:
                found[node.targets[0].id] = text
    return found


def _text(node: ast.expr, constants: dict[str, str]) -> str:
    """The template that an expression makes; empty where it has no text."""
    if isinstance(node, ast.Constant):
        return (
            node.value.replace("{}", "\0").replace("{", "(").replace("}", ")").replace("\0", "{}")
            if isinstance(node.value, str)
            else ""
        )
    if isinstance(node, ast.JoinedStr):
        return "".join(_text(value, constants) if isinstance(value, ast.Constant) else "{}" for value in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod):
        return formatted(_raw(node.left, constants))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = _text(node.left, constants), _text(node.right, constants)
        return (left or "{}") + (right or "{}") if left or right else ""
    if isinstance(node, ast.Name):
        return constants.get(node.id, "")
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr == "format":
            return re.sub(r"\{[^{}]*\}", "{}", _raw(node.func.value, constants))
        if node.func.attr in ("strip", "rstrip", "lstrip"):
            return _text(node.func.value, constants)
    if isinstance(node, ast.Call) and node.args and isinstance(node.func, ast.Name) and node.func.id in ("dedent", "str", "_"):
        return _text(node.args[0], constants)
    return ""


def _raw(node: ast.expr, constants: dict[str, str]) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return _text(node, constants)
