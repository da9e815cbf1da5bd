"""Remove what HTML, Markdown, JSON, terminals and mail put around a text, and keep its line numbers."""

from __future__ import annotations

import binascii
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from torchtune_sys.formats.kernel_log import pieces
from torchtune_sys.model import codec
from torchtune_sys.model.patterns import pattern

_ANSI = pattern(r"\x1b(?:\[[0-9;:?]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)?|[@-Z\\^_=>78])")
_SPELT = pattern(r"(?:\^\[|\\x1b|\\033|\\u001b)\[[0-9;]{0,12}m|(?<![\w\]\[])\[(?:\d{1,2};){0,3}(?:3\d|9\d|0)m")
"""Colours as a page or a pager spells them, and what is left of them where the control character was lost."""
_TAGS = pattern(
    r"</?(?:a|b|i|u|s|p|q|br|hr|em|tt|h[1-6]|ol|ul|li|td|th|tr|div|pre|sub|sup|code|span|body|html|head|meta|link|samp|kbd|table|tbody|thead"
    r"|strong|section|article|blockquote|details|summary|font|img|input|button|svg|path)\b[^<>]{0,2000}>",
    re.IGNORECASE,
)
_BREAKS = pattern(r"<br ?/?>|</(?:p|div|tr|li|pre|h[1-6]|summary|blockquote|details)>", re.IGNORECASE)
_ENTITY = pattern(r"&(?:[a-z]{2,6}|#\d{1,5}|#x[0-9a-fA-F]{1,4});")
_LINK = pattern(r"\[([^\[\]\n]{1,400})\]\(https?://[^()\s]{1,1000}\)")
_FENCE = pattern(r"^ {0,3}(?:`{3,}|~{3,})[\w+.-]{0,20} *$")
_QUOTE = pattern(r"^[ \t]{0,3}(?:> ?){1,8}")
_FRAME = pattern(r"[ \t]{0,8}[│┃║] ?([^│┃║]*?)\s*[│┃║]")
"""A row of a panel (rich, click, boxes); a row of a table has more than two such signs."""
_MARGIN = pattern(r"[│┃║] (?=[^│┃║]*$)")
"""At the left of a log in a terminal's list (k9s, Lens); of a panel's row the right end is there, too."""
_LIMIT = 16 << 20
_MESSAGE_KEYS = (
    "message",
    "msg",
    "log",
    "text",
    "line",
    "MESSAGE",
    "textPayload",
    "body",
    "error",
    "err",
    "stderr",
    "exc_info",
    "stack_trace",
    "exception",
    "exc",
    "exc_text",
    "traceback",
    "stacktrace",
    "stack",
    "event",
    "error.message",
    "error.stack_trace",
)
_ERROR_KEYS = ("error", "err", "exception", "exc", "exc_info")
"""Where structured logs keep an error that has parts of its own (ECS, structlog)."""


class Labels(NamedTuple):
    """What a JSON document says of the process whose line it holds."""

    rank: int | None
    host: str


_RANK_KEYS = ("rank", "global_rank", "RANK", "process_rank", "process_index")
_HOST_KEYS = ("pod_name", "pod", "hostname", "host", "node_name", "node", "_HOSTNAME")
_NAME = pattern(r"(?=[^.]*[a-zA-Z])[\w.-]{1,253}")


def uncoloured(line: str) -> str:
    """Return the text without what a terminal acts upon."""
    line = _ANSI.sub("", line) if "\x1b" in line else line
    return _SPELT.sub("", line) if "[" in line else line


def plain(line: str) -> str:
    """Return the text without colours, what was overwritten, and blanks that are none.

    >>> plain("\\x1b[31merror\\x1b[0m:\\u00a0x")
    'error: x'
    """
    line = uncoloured(line)
    if "\b" in line:
        line = re.sub(r".\x08", "", line)
    if line.count("%20") >= _PERCENT and " " not in line.strip():
        from urllib.parse import unquote

        line = unquote(line)
    return (line if line.isascii() else line.translate(_PLAIN)).rstrip()


_PERCENT = 2
"""Blanks of an address into which somebody copied the line."""

_PLAIN = {
    0x00A0: " ", 0xFEFF: "", 0x200B: "", 0xFF1A: ": ", 0x2018: "'", 0x2019: "'", 0x201C: '"', 0x201D: '"', 0x2013: "-", 0x2026: "...",
}  # fmt: skip
"""What editors and web pages put in the place of characters."""


def mailed(numbered: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the lines as they were before mail's *quoted-printable* (RFC 2045) broke them and wrote signs as ``=3D``; others as they are.

    >>> mailed([(1, "x" * 69 + " y=3D="), (2, "=E2=80=98w"), (3, "z")])[0][1].lstrip("x"), mailed([(1, "x=3D1")])
    (' y=‘w', [(1, 'x=3D1')])
    """
    broken = any(
        line.endswith("=") and _SOFT[0] <= len(line) <= _SOFT[1] and line[-2] != "=" and " " in line for _, line in numbered
    )
    if not broken or not (all(len(line) <= _SOFT[1] for _, line in numbered) or any(_QP.search(line) for _, line in numbered)):
        return numbered
    found: list[tuple[int, str]] = []
    begun, parts = 0, ""
    for number, line in numbered:
        begun, goes_on = begun if parts else number, line.endswith("=")
        parts += line.removesuffix("=")
        if not goes_on or len(parts) > _LIMIT:
            found.append((begun, binascii.a2b_qp(parts.encode("utf-8", "surrogateescape")).decode("utf-8", "replace")))
            parts = ""
    return [*found, (begun, parts)] if parts else found


_SOFT = (70, 76)
"""Columns of a line that goes on: mailers fill them, but break no sign that is written as several."""
_QP = pattern(r"=(?:3D|20|09|C[23]=|E2=)")


def unpacked(numbered: Iterable[tuple[int, str]], labels: dict[int, Labels]) -> Iterator[tuple[int, str]]:
    """Yield the lines, those within JSON and HTML apart; put into ``labels`` what the document of a line says of its process.

    >>> said: dict[int, Labels] = {}
    >>> list(unpacked([(1, '{"log": "a\\\\nb", "rank": 3, "kubernetes": {"pod_name": "llm-3"}}'), (2, "<p>x &gt; y</p><br>z")], said)), said[1]
    ([(1, 'a'), (1, 'b'), (2, 'x > y'), (2, 'z')], Labels(rank=3, host='llm-3'))
    """
    for number, line in _rejoined([*numbered]):
        document = _document(line)
        if isinstance(document, dict) and any(told := _labels(document, 0)):
            labels[number] = Labels(told[0] if told[0] is None else int(told[0]), told[1])
        for text in _of_json(line, document):
            for part in _of_html(text):
                yield number, part


def _rejoined(numbered: list[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield the lines, JSON documents that somebody broke at a width whole.

    >>> list(_rejoined([(1, '{"message": "no space '), (2, 'left on device"}'), (3, "x")]))
    [(1, '{"message": "no space left on device"}'), (3, 'x')]
    """
    at = 0
    while at < len(numbered):
        number, line = numbered[at]
        end = at + 1
        if line.startswith('{"') and not line.rstrip().endswith("}"):
            end, line = _document_from(numbered, at)
        yield number, line
        at = end


def _document_from(numbered: Sequence[tuple[int, str]], at: int) -> tuple[int, str]:
    """Return the document whose first piece is there, and where the line after it stands; the line alone if it is none."""
    pieces = [numbered[at][1]]
    for end in range(at + 1, min(at + _PIECES, len(numbered))):
        pieces.append(numbered[end][1])
        if pieces[-1].lstrip().startswith('{"'):
            break
        if pieces[-1].rstrip().endswith("}"):
            whole = next((text for blank in ("", " ") if isinstance(_document(text := blank.join(pieces)), dict)), None)
            if whole is not None:
                return end + 1, whole
    return at + 1, pieces[0]


_PIECES = 64


def _document(line: str) -> Any:
    start = line.lstrip()[:1]
    if not start or start not in '{["' or len(line) >= _LIMIT:
        return None
    try:
        return codec.loads(line.strip())
    except ValueError:
        return None


def _labels(document: dict[str, Any], depth: int) -> tuple[str | None, str]:
    """Return the rank and the host (rather the pod) that the document or a part of it names."""
    ranks = [str(document[key]) for key in _RANK_KEYS if key in document and str(document[key]).isdigit()]
    hosts = [document[key] for key in _HOST_KEYS if isinstance(document.get(key), str) and _NAME.fullmatch(document[key])]
    rank, host = ranks[0] if ranks else None, hosts[0] if hosts else ""
    for part in document.values() if depth < _LABELS_DEEP and not (rank and host) else ():
        inner = _labels(part, depth + 1) if isinstance(part, dict) else (None, "")
        rank, host = rank or inner[0], host or inner[1]
    return (rank if rank is None or len(rank) <= _DIGITS else None), host


_LABELS_DEEP, _DIGITS = 2, 6


def _of_json(line: str, value: Any) -> Iterable[str]:
    if isinstance(value, dict) and str(value.get("schema", "")).startswith(DIAGNOSIS):
        return ()  # what a bundle says of itself is no evidence
    if isinstance(value, (dict, list, str)):
        found = [part for text in _texts(value, 0) for part in pieces(text)]
        if found:
            return found
    if line.count("\\n") >= _ESCAPED and (len(line) > _LONG or line.lstrip()[:1] in ('"', "{")):
        return line.replace("\\r", "").replace("\\n", "\n").replace("\\t", " ").replace('\\"', '"').split("\n")
    return (line,)


_ESCAPED, _LONG = 2, 120
DIAGNOSIS = "torchtune-sys/diagnosis/"
_DEEP = 8


def _texts(value: Any, depth: int) -> Iterator[str]:
    """Yield the messages in a JSON document: what log collectors call so; else its texts that have several words."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list) and depth < _DEEP:
        for item in value:
            yield from _texts(item, depth + 1)
    elif isinstance(value, dict) and depth < _DEEP:
        named = [value[key] for key in _MESSAGE_KEYS if isinstance(value.get(key), str) and value[key].strip()]
        parts = [value[key] for key in _ERROR_KEYS if isinstance(value.get(key), (dict, list))]
        if isinstance(value.get("exc_type"), str):
            named.append(f"{value['exc_type']}: {value.get('exc_value', '')}")
        if named:
            yield from named
            for part in parts:
                yield from _texts(part, depth + 1)
            return
        for item in value.values():
            if isinstance(item, (dict, list)) or (isinstance(item, str) and " " in item.strip()):
                yield from _texts(item, depth + 1)


def _of_html(text: str) -> Iterable[str]:
    if "<" in text and _TAGS.search(text):
        text = _TAGS.sub("", _BREAKS.sub("\n", text))
    if "&" in text and _ENTITY.search(text):
        from html import unescape

        text = unescape(text)
    if "](http" in text:
        text = _LINK.sub(r"\1", text)
    return [part for part in text.split("\n") if part] if "\n" in text else (text,)


def unquoted(numbered: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the lines without marks of quotation, where several lines have them, fences, and an indentation that all share."""
    quoted = sum(bool(_QUOTE.match(line)) for _, line in numbered)
    if quoted >= min(3, len(numbered)):
        numbered = [(number, _QUOTE.sub("", line)) for number, line in numbered]
    margins = [_MARGIN.match(line) for _, line in numbered]
    if sum(map(bool, margins)) >= 3 and any(
        margin is not None and line.startswith('File "', margin.end() + 2)
        for (_, line), margin in zip(numbered, margins, strict=True)
    ):
        numbered = [
            (number, line[margin.end() :] if margin else line) for (number, line), margin in zip(numbered, margins, strict=True)
        ]
    framed = [_FRAME.fullmatch(line) for _, line in numbered]
    panels = sum(map(bool, framed))
    if panels >= max(3, len(numbered) // 3) or (
        panels >= 3 and any(frame is not None and frame[1].startswith("  File ") for frame in framed)
    ):
        numbered = [
            (number, frame[1] if frame else _MARGIN.sub("", line)) for (number, line), frame in zip(numbered, framed, strict=True)
        ]
    found = [(number, unmarked(line)) for number, line in numbered if line.strip("` \t") and not _FENCE.match(line)]
    common = min((len(line) - len(line.lstrip(" \t")) for _, line in found), default=0)
    return [(number, line[common:]) for number, line in found] if common else found


_CELLS = pattern(r"\| (?P<name>[^|]{20,32}) \| (?P<text>.{40,120}) \|")
_WITHIN_WORDS = 45
"""Characters of a cell after which dcgmi diag goes on in the next row, whatever is there (DCGM dcgmi/Diag.cpp, DATA_INFO_TAG_LEN)."""
_LONGEST_CELL = 4000


def whole_cells(numbered: list[tuple[int, str]]) -> list[tuple[int, str]]:
    """Return the lines, each text that dcgmi's tables broke over several rows in its first one.

    >>> text = "GPU 5 is running at PCI link width 8X, below the minimum"
    >>> rows = [f"| {'Warning':25} | {text[:45]:46} |", f"| {'':25} | {text[45:]:46} |"]
    >>> whole_cells([(1, rows[0]), (2, rows[1])])[0][1][-29:]
    'width 8X, below the minimum |'
    """
    found: list[tuple[int, str]] = []
    before = None
    for number, line in numbered:
        cells = _CELLS.fullmatch(line) if line.startswith("| ") else None
        goes_on = cells and before and not cells["name"].strip() and len(line) == len(before[0])
        if cells and before and goes_on and len(found[-1][1]) < _LONGEST_CELL:
            size = len(before["text"].rstrip())
            glue = "" if size == _WITHIN_WORDS == len(before["text"]) - 1 else " "
            first, text = found[-1]
            found[-1] = first, f"{text.rstrip('| ')}{glue}{cells['text'].rstrip()} |"
        else:
            found.append((number, line))
        before = cells
    return found


def unmarked(line: str) -> str:
    """Return the text without Markdown's marks of code and emphasis at its ends.

    >>> unmarked("`Killed`"), unmarked("**ERROR: x**"), unmarked("version `GLIBC_2.29' not found")
    ('Killed', 'ERROR: x', "version `GLIBC_2.29' not found")
    """
    for mark in ("`", "**"):
        if line.startswith(mark):
            line = line[len(mark) :]
        if line.endswith(mark):
            line = line[: -len(mark)]
    return line


def begins(line: str) -> bool:
    """Return whether the line cannot go on with another one.

    >>> begins("RuntimeError: no"), begins("out waiting 25000ms")
    (True, False)
    """
    return _BEGINS.match(line) is not None


_NARROWEST, _WIDEST = 50, 260
_BOX = pattern(r"\s*(?:[|+]|[=#*-]{2}|[=#*-] )")
_BEGINS = pattern(
    r"\s*(?:export )?[A-Z][A-Z0-9_]{2,60}=|[\w.-]{1,64}:\d{1,9}:\d{1,9} \[\d{1,4}\] |\[ {0,8}\d{1,9}\.\d{6}\] |[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d "
    r"|(?:[\w.]{1,80}\.)?[A-Z]\w{1,40}(?:Error|Exception): |Traceback \("
)
"""What begins a line of its own: a variable, NCCL's head, the kernel's and syslog's time, Python's error."""


def width(lines: Sequence[str]) -> int:
    """Return the column at which the text was broken; 0 where it was not.

    >>> width(["x" * 80, "x" * 80, "y" * 12, "z " * 40]), width(["short", "longer", "x" * 300])
    (80, 0)
    >>> width(["file creation failed for the library that the image has:", "/var/lib/" + "x" * 140, "file exists: unknown."])
    56
    """
    texts = [line.rstrip() for line in lines if line.strip() and not _BOX.match(line)]
    lengths = Counter(map(len, texts))
    widest = max(lengths, default=0)
    folded = max((len(text) for text in texts if " " in text.strip() and not _LONG_WORD.search(text)), default=0)
    if widest > folded >= _NARROWEST:  # who breaks between words leaves a long one whole
        full, longer = (
            sum(lengths[length] for length in lengths if low < length <= high)
            for low, high in ((folded - _WORD, folded), (folded, widest))
        )
        widest = folded if widest > folded + _WORD or full > longer else widest
    if not _NARROWEST <= widest <= _WIDEST:
        return 0
    near = sum(count for length, count in lengths.items() if widest - _WORD < length <= widest)
    return widest if near >= _BROKEN else 0


_WORD, _BROKEN = 16, 1
_LONG_WORD = pattern(r"\S{41}")


def goes_on(line: str, after: str, width: int) -> bool:
    """Return whether the next word would not have fitted: then somebody broke the line there.

    >>> goes_on("a" * 76, "bbbbbb", 80), goes_on("a" * 60, "bb cc", 80), goes_on("a" * 80, "b", 80), goes_on("a", "b" * 90, 80)
    (True, False, True, True)
    """
    if begins(after) or line.endswith(("^", "~")):
        return False
    word = after.lstrip().partition(" ")[0]
    fills = len(line) > width // 2 or line.endswith(":") or len(word) >= width  # which fits nowhere
    return len(line) >= width or (fills and len(line) + 1 + len(word) > width)
