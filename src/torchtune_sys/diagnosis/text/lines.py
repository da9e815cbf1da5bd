"""Recover lines as a program printed them from mail, web pages, log collectors, launchers and terminals.

What a prefix says of host, process, rank and moment is kept beside the line. Each step costs time in proportion to the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import msgspec

from torchtune_sys.diagnosis.text import unwrapping
from torchtune_sys.formats.kernel_log import without_names
from torchtune_sys.formats.line_prefixes import PREFIXES_AT_MOST, prefix, repeated_heads


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    number: int
    text: str
    """Without what others put before it."""
    printed: str
    """As it came, without colours: a kernel's time belongs to its line."""
    host: str = ""
    rank: int | None = None
    pid: int | None = None
    time: str = ""


def lines_of(numbered: Iterable[tuple[int, str]]) -> tuple[LogLine, ...]:
    """Return the lines that say something, in order.

    >>> for line in lines_of([(1, "> node-3: [rank5]: RuntimeError: no"), (2, "> node-3: [rank5]: way"), (3, "> node-4: [rank9]: x")]):
    ...     print(line.host, line.rank, line.text)
    node-3 5 RuntimeError: no
    node-3 5 way
    node-4 9 x
    """
    labels: dict[int, unwrapping.Labels] = {}
    plain = [(number, unwrapping.plain(line)) for number, line in unwrapping.unpacked(unwrapping.mailed([*numbered]), labels)]
    plain = unwrapping.whole_cells(unwrapping.unquoted([(number, line) for number, line in plain if line.strip()]))
    heads = repeated_heads([line for _, line in plain])
    read = [_read(number, line, heads, labels.get(number, _NO_LABELS)) for number, line in plain]
    return _headed(_continued(_without_tasks(read)))


class _Numbered(NamedTuple):
    line: LogLine
    own: int | None
    """The rank that the program, a log collector or a launcher's summary tells."""
    task: int | None
    """The number that a launcher put before the line."""


def _without_tasks(read: Sequence[_Numbered]) -> list[LogLine]:
    """Return the lines; where the numbers before them count tasks, and not the ranks that each task starts, without these numbers.

    >>> one, two = [(1, "0: [rank0]: a"), (2, "0: b"), (3, "0: c")], [(4, "1: [rank2]: d"), (5, "1: e")]
    >>> [line.rank for line in lines_of(one)], [line.rank for line in lines_of([*one, *two])]
    ([0, 0, 0], [0, None, None, 2, None])
    """
    are_others = any(None not in (each.own, each.task) and each.own != each.task for each in read)
    return [msgspec.structs.replace(line, rank=own) if are_others and task is not None else line for line, own, task in read]


def _continued(lines: list[LogLine]) -> list[LogLine]:
    """Return the lines, those that somebody broke at a width with the host and the rank of their beginning.

    >>> broken = [LogLine(number=1, text="x" * 74, printed="[rank3]: " + "x" * 71, rank=3), LogLine(number=2, text="y", printed="y")]
    >>> [line.rank for line in _continued(broken)]
    [3, 3]
    """
    width = unwrapping.width([line.printed for line in lines]) if any(line.rank is not None or line.host for line in lines) else 0
    for at in range(1, len(lines) if width else 0):
        before, line = lines[at - 1], lines[at]
        if (
            line.rank is None
            and not line.host
            and _is_bare(line)
            and (before.rank is not None or before.host)
            and unwrapping.goes_on(before.printed, line.printed, width)
        ):
            lines[at] = msgspec.structs.replace(line, host=before.host, rank=before.rank, pid=before.pid)
    return lines


_HOST = r"(?P<host>[A-Za-z][\w.-]{0,63})"
_HEADINGS = (
    re.compile(rf"^{_HOST} \| (?:CHANGED|SUCCESS|FAILED!?|UNREACHABLE!?)(?: \| rc=-?\d{{1,3}})? (?:>>|=>)"),
    re.compile(
        rf"^(?:={{2,60}} ?|={{2,3}}> ?|-{{3,60}} )(?:(?:host|node)[: ] ?)?{_HOST}(?: ?={{2,60}}| ?<={{2,3}}| -{{3,60}}):?$"
    ),
)
"""Above what a host printed: Ansible's, and a name between marks (``=== node1 ===``)."""
_RULE = re.compile(r"^-{8,80}$")
_GATHERED = re.compile(r"^(?P<host>[A-Za-z][\w.,\[\]-]{0,200})(?: \(\d{1,5}\))?$")
"""Between two rules: what clush -b and dshbak print once for all hosts of which it is the same."""
_FILE = re.compile(r"\.(?:log|out|err|txt|json|py|sh|yaml|conf)$|/")


def _headed(lines: list[LogLine]) -> tuple[LogLine, ...]:
    """Lines below a heading that names a host are that host's, where two headings do.

    >>> [line.host for line in _headed([LogLine(number=1, text=text, printed=text) for text in ("n1 | CHANGED | rc=0 >>", "a", "n2 | SUCCESS | rc=0 >>", "b")])]
    ['n1', 'n1', 'n2', 'n2']
    """
    heads = {
        at: host for at, line in enumerate(lines) if (host := _heading(lines, at, line.printed) or _heading(lines, at, line.text))
    }
    if len(set(heads.values())) < 2:
        return tuple(lines)
    found, host = [], ""
    for at, line in enumerate(lines):
        host = heads.get(at, host)
        found.append(msgspec.structs.replace(line, host=host) if host and not line.host else line)
    return tuple(found)


def _heading(lines: Sequence[LogLine], at: int, text: str) -> str:
    if len(text) > _HEADING_LENGTH:
        return ""
    match = next((match for pattern in _HEADINGS if (match := pattern.match(text))), None)
    if match is None and 0 < at < len(lines) - 1 and _RULE.match(lines[at - 1].text) and _RULE.match(lines[at + 1].text):
        match = _GATHERED.match(text)
    return match["host"] if match is not None and not _FILE.search(match["host"]) and any(map(str.isdigit, match["host"])) else ""


_HEADING_LENGTH = 240


_NCCL = re.compile(r"^(?P<host>[\w.-]{1,64}):(?P<pid>\d{1,9}):\d{1,9} \[(?P<rank>\d{1,4})\] ")
_INNER_RANK = re.compile(r"\[(?:[Rr]ank |rank)(?P<rank>\d{1,7})\]")
_SUMMARY_RANK = re.compile(r"\s{0,8}rank {1,12}: (?P<rank>\d{1,6}) \(local_rank: \d{1,4}\)$")
_RANK_FIELD = re.compile(r"(?:^|[\[(<|,;] ?)(?:global_?)?[Rr](?:ank|ANK)[ =:#_-]{0,2}(?P<rank>\d{1,6}) ?[\])>|,;]")
_LEVEL = re.compile(r"\b(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b", re.IGNORECASE)
_WORDS = re.compile(r"[a-z]{2,} [a-z]{2,}")
_HEAD_LONG = 160


_NO_LABELS = unwrapping.Labels(None, "")


def _read(number: int, line: str, heads: frozenset[str], labels: unwrapping.Labels) -> _Numbered:
    fields: dict[str, str] = {}
    text = line
    for _ in range(PREFIXES_AT_MOST):
        found = prefix(text, heads)
        if found is None:
            break
        for name, value in found.groupdict().items():
            if value and (name not in fields or (name in ("rank", "task") and not found[0].startswith("[default"))):
                fields[name] = value
        text = text[found.end() :]
    text = without_names(text, line)
    nccl = _NCCL.match(text)
    if nccl is not None:
        fields.setdefault("host", nccl["host"])
        fields.setdefault("pid", nccl["pid"])
    if labels.rank is not None:
        fields.setdefault("rank", str(labels.rank))
    inner = _SUMMARY_RANK.match(text) or (
        None if fields.keys() & {"rank", "task"} else _INNER_RANK.search(text[:400]) or _rank_field(text)
    )
    if inner is not None:
        fields["rank"] = inner["rank"]
    own, task = (int(fields[name]) if name in fields else None for name in ("rank", "task"))
    read = LogLine(
        number=number,
        text=text.rstrip(),
        printed=line,
        host=fields.get("host", labels.host),
        rank=task if own is None else own,
        pid=int(fields["pid"]) if "pid" in fields else None,
        time=fields.get("time", ""),
    )
    return _Numbered(read, own, task)


def _rank_field(text: str) -> re.Match[str] | None:
    """Return the rank that is a field of its own in the head of a log record, before the message.

    >>> _rank_field("ERROR,rank 5,llm.train:109: failed")["rank"], _rank_field("ERROR llm: lost the heartbeat (rank 3)")
    ('5', None)
    """
    found = _RANK_FIELD.search(text[:_HEAD_LONG]) if "ank" in text[:_HEAD_LONG] or "RANK" in text[:_HEAD_LONG] else None
    is_field = found is not None and _LEVEL.search(text[:_HEAD_LONG]) and not _WORDS.search(text[: found.start()])
    return found if is_field else None


_ALIKE, _SHAPE = 8, 300


def seldom(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield the lines, of those of one shape (digits aside) the first ones: a long log says the same again and again.

    >>> len(list(seldom(LogLine(number=at, text=f"step {at}", printed="") for at in range(99))))
    8
    """
    seen: Counter[str] = Counter()
    for line in lines:
        shape = _DIGITS.sub("0", line.text[:_SHAPE])
        seen[shape] += 1
        if seen[shape] <= _ALIKE:
            yield line


_DIGITS = re.compile(r"\d+")


def joined(lines: Sequence[LogLine]) -> Iterator[tuple[Sequence[LogLine], str]]:
    """Yield lines that somebody broke at a width, and the same whole again; both ways where it is not known whether a
    blank was lost at the break."""
    width = unwrapping.width([line.printed for line in lines])
    at = 0
    while width and at < len(lines) - 1:
        end = at
        while (
            end + 1 < len(lines)
            and end - at < JOINED
            and _of_one_rank(lines[end], lines[end + 1])
            and unwrapping.goes_on(lines[end].printed, lines[end + 1].printed, width)
        ):
            end += 1
        if 0 < end - at < JOINED:
            for blank in ("", " "):
                yield lines[at : end + 1], glued(lines[at : end + 1], width, blank)
        at = max(end, at + 1)


def unbroken(lines: Sequence[LogLine]) -> Iterator[LogLine]:
    """Yield the lines, those that somebody broke at a width only whole, with the number of the first piece."""
    whole = [(pieces, words) for pieces, words in joined(lines)]
    broken = {piece.number for pieces, _ in whole for piece in pieces} if whole else set()
    yield from (line for line in lines if line.number not in broken)
    yield from (msgspec.structs.replace(pieces[0], text=words) for pieces, words in whole)


def _of_one_rank(line: LogLine, after: LogLine) -> bool:
    """Whether the second may go on with the first: it has no head, or the same one."""
    same = _is_bare(after) or (after.host in ("", line.host) and after.rank == line.rank)
    return same and not unwrapping.begins(after.text) and not _begin_alike(line.text, after.text)


def _begin_alike(text: str, after: str) -> bool:
    """Return whether both begin alike, as two lines of one program or script do: with a label (``[Gloo]``), or with two words (``ssh n1``)."""
    words, first = after.split(" ", 2)[:2], text.split(" ", 2)[:2]
    return words == first if words[0].isalpha() else words[0] == first[0] and len(words[0]) >= _LABEL


_LABEL = 3


def _is_bare(line: LogLine) -> bool:
    return line.printed.strip() == line.text.strip()


def glued(lines: Sequence[LogLine], width: int, blank: str) -> str:
    """Return the lines as one; ``blank``: what stood at a break at the very width."""
    whole = lines[0].text
    for before, line in pairwise(lines):
        broken_within = before.printed.endswith(("-", "/")) or len(before.printed) >= width
        whole += (blank if broken_within else " ") + line.text.lstrip()
    return whole


_EXCEPTION = re.compile(r"(?:[A-Za-z_<][\w<>]{0,60}\.){0,8}(?:[A-Z]\w{2,60}(?:: |$)|(?<=\.)[a-z]\w{2,60}: )")


def is_raised(line: LogLine, before: LogLine | None) -> bool:
    """Return whether it is the exception below the frames of a traceback, whatever it is called (``StopIteration``, ``NonFiniteLoss: step 5``)."""
    return before is not None and before.text.startswith("  ") and _EXCEPTION.match(line.text[:_SHAPE]) is not None


JOINED = 24
"""Pieces of one line; more are lines that happen to be equally long."""
