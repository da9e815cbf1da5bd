"""Messages in C, C++ and Go sources: the texts that calls of certain names print."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_TOKEN = re.compile(
    r"""(?P<comment>//[^\n]*|/\*.*?\*/)
    |(?P<raw>R"(?P<mark>[^(\s]{0,16})\(.*?\)(?P=mark)"|`[^`]*`)
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<char>'(?:[^'\\\n]|\\.){1,8}')
    |(?P<name>[A-Za-z_]\w*(?:(?:::|\.)[A-Za-z_]\w*)*)
    |(?P<mark1><<|[-+(){}\[\],;])
    |(?P<other>[^\s"'`A-Za-z_(){}\[\],;+-]+)""",
    re.DOTALL | re.VERBOSE,
)
_SPEC = re.compile(r"%(?:%|[-+ #0]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh|h|ll|l|z|j|t|L|q)?[diouxXeEfFgGaAcspnvwTtqUbm])")
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]+|[0-7]{1,3}|.)", re.DOTALL)
_SPACES = {"n": "\n", "t": " ", "r": "\n", '"': '"', "'": "'", "\\": "\\", "a": "", "b": "", "?": "?"}


class Call(NamedTuple):
    """Which calls print a message, and how: ``printf`` (a format among the arguments), ``joined`` (all arguments one after another),
    ``stream`` (what follows up to the semicolon)."""

    name: str
    style: str
    severity: str


class Token(NamedTuple):
    kind: str
    text: str


def tokens(source: str) -> list[Token]:
    found = []
    for match in _TOKEN.finditer(source):
        kind = "mark" if match.lastgroup in ("mark1", "other") else str(match.lastgroup)
        if match["comment"] is None:
            kind = "raw" if match["raw"] is not None else kind
            found.append(Token(kind, match[0]))
    return found


def unquoted(token: Token) -> str:
    if token.kind == "raw":
        text = token.text
        return text.strip("`") if text.startswith("`") else text[text.index("(") + 1 : text.rindex(")")]
    return _ESCAPE.sub(lambda match: _SPACES.get(match[0][1], " "), token.text[1:-1])


def formatted(text: str) -> str:
    """A printf format as a template.

    >>> formatted("rank %d of %lu: %5.1f%%")
    'rank {} of {}: {}%'
    """
    return _SPEC.sub(lambda match: "%" if match[0] == "%%" else "{}", text.replace("{", "(").replace("}", ")"))


def messages(source: str, calls: list[Call]) -> Iterator[tuple[str, str]]:
    """Each message of ``source``: severity and template.

    >>> list(messages('WARN("Call to %s " "failed", name);', [Call("WARN", "printf", "warning")]))
    [('warning', 'Call to {} failed')]
    >>> list(messages('TORCH_CHECK(a > b, "got ", a, " of ", b);', [Call("TORCH_CHECK", "joined", "error")]))
    [('error', 'got {} of {}')]
    >>> list(messages('LOG(ERROR) << "Timeout at " << rank << "!";', [Call("LOG", "stream", "error")]))
    [('error', 'Timeout at {}!')]
    """
    named = {call.name: call for call in calls}
    all_tokens = tokens(source)
    for number, token in enumerate(all_tokens[:-1]):
        if token.kind != "name":
            continue
        call = named.get(token.text) or named.get(re.split(r"::|\.", token.text)[-1])
        if call is None or all_tokens[number + 1].text != "(":
            continue
        arguments, end = _arguments(all_tokens, number + 1)
        if call.style == "stream":
            text = _joined(_until_semicolon(all_tokens, end))
        elif call.style == "joined":
            text = "".join(_argument(each) for each in arguments if each) if _has_text(arguments) else ""
            text = re.sub(r"^\{\}", "", text)
        else:
            text = next((formatted(_literal(each)) for each in arguments if _is_text(each)), "")
        if text:
            yield call.severity, text


def _arguments(all_tokens: list[Token], opening: int) -> tuple[list[list[Token]], int]:
    depth, at = 0, opening
    found: list[list[Token]] = [[]]
    while at < len(all_tokens) and at < opening + 3000:
        text = all_tokens[at].text if all_tokens[at].kind == "mark" else ""
        if text in ("(", "[", "{"):
            depth += 1
            if depth == 1:
                at += 1
                continue
        elif text in (")", "]", "}"):
            depth -= 1
            if depth == 0:
                return found, at + 1
        if text == "," and depth == 1:
            found.append([])
        else:
            found[-1].append(all_tokens[at])
        at += 1
    return [[]], at


def _until_semicolon(all_tokens: list[Token], start: int) -> list[Token]:
    end = start
    while end < len(all_tokens) and end < start + 400 and all_tokens[end].text != ";":
        end += 1
    return all_tokens[start:end]


def _is_text(argument: list[Token]) -> bool:
    return any(token.kind in ("string", "raw") for token in argument[:2])


def _has_text(arguments: list[list[Token]]) -> bool:
    return any(_is_text(each) for each in arguments)


def _literal(argument: list[Token]) -> str:
    return "".join(unquoted(token) if token.kind in ("string", "raw") else "{}" for token in argument if token.text != "+")


def _argument(argument: list[Token]) -> str:
    """An argument of a call that joins them: its text, that of a format inside it, or a hole."""
    if _is_text(argument):
        return _literal(argument)
    for number, token in enumerate(argument[:-1]):
        if (
            token.kind == "name"
            and token.text.endswith(("format", "c10::str", "MakeString"))
            and argument[number + 1].text == "("
        ):
            inner, _ = _arguments(argument, number + 1)
            texts = [each for each in inner if _is_text(each)]
            if texts:
                return _literal(texts[0]) if token.text.endswith("format") else "".join(map(_argument, inner))
    return "{}"


def _joined(following: list[Token]) -> str:
    parts: list[list[Token]] = [[]]
    for token in following:
        if token.text == "<<":
            parts.append([])
        else:
            parts[-1].append(token)
    return "".join(_argument(part) for part in parts if part)
