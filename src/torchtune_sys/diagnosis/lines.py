"""Recover lines as a program printed them from mail, web pages, log collectors, launchers and terminals.

What a prefix says of host, process, rank and moment is kept beside the line. Each step costs time in proportion to the text.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import msgspec

from torchtune_sys.diagnosis import unwrapping


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
    plain = unwrapping.unquoted([(number, line) for number, line in plain if line.strip()])
    heads = _repeated_heads([line for _, line in plain])
    return _headed(_continued([_read(number, line, heads, labels.get(number, _NO_LABELS)) for number, line in plain]))


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


_TIME = r"\d{4}[-/]\d\d[-/]\d\d(?:[T _]{1,2}|, )\d\d:\d\d:\d\d(?:[.,:]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d| UTC)?"
_PREFIXES: tuple[tuple[re.Pattern[str], bool], ...] = tuple(
    (re.compile(pattern), repeated)
    for pattern, repeated in (
        (rf"\[?(?P<time>{_TIME})[\]|,:]{{0,2}}[ \t]{{0,4}}(?:[-|] |std(?:out|err) [FP] )?", False),
        (
            r"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?P<host>[\w.-]{1,64}) (?!kernel:)[\w./-]{1,40}(?:\[\d{1,8}\])?: ",
            False,
        ),
        (r"\[(?P<time>\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)\] ?", False),
        (r"[EWIF]\d{4} (?P<time>\d\d:\d\d:\d\d(?:\.\d{1,9})?) {1,4}(?P<pid>\d{1,9}) (?=\S{1,80}:\d{1,6}\] )", False),
        (r"[^\t]{1,80}\t[^\t]{1,80}\t(?=\d{4}-\d\d-\d\dT)", False),
        (r"\{[\w.]{1,60}:\d{1,6}\} [A-Z]{4,8} - ", False),
        (r"\[(?:\d{1,9},)?(?:mpirank:)?(?P<rank>\d{1,7})(?:,(?P<host>[\w.-]{1,64}))?\]<std(?:err|out|diag)>: ?", False),
        (r"\[(?:default|rank|trainer|worker|Rank |RANK |rank=|rank: ?|Rank: |GPU )(?P<rank>\d{1,7})(?:\|\d{1,4})?\]:? ?", False),
        (r"(?:rank|Rank|RANK)[ =]?(?P<rank>\d{1,7})(?::| \|| -) ", False),
        (r"(?P<rank>\d{1,5}):(?: (?![\w.@-]{1,32}(?:: <|\s{1,20}inet))|$)", True),
        (r"[\w./-]{0,200}\.(?:log|out|err|txt):(?:\d{1,9}:)?", True),
        (r" {0,6}\d{1,6}\t", True),
        (r"[A-Za-z]\w{1,30}/(?P<rank>\d{1,5}) ", True),
        (r"\[(?P<rank>\d{1,5})\] ", True),
        (r"\((?:[\w.:]{1,60} )?(?:pid|PID)=(?P<pid>\d{1,9})(?:, ip=(?P<host>[\w.:]{2,45}))?\) ?", False),
        (r"\((?:\w{1,40} )?rank=(?P<rank>\d{1,7})(?: pid=(?P<pid>\d{1,9}))?\) ?", False),
        (r"\[pod/(?P<host>[\w.-]{1,253})/[\w.-]{1,63}\] ?", False),
        (r"(?P<host>[\w.-]{1,64}) {1,20}\| ", True),
        (r"(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)(?:[ :|-]{1,3}[\w.]{1,60})?(?: ?[:|-] ?| )", True),
        (r"(?P<host>[A-Za-z][\w.-]{0,63}):(?: |$)", True),
        (r"\[(?P<host>[A-Za-z][\w.-]{0,63})\]:?(?: |$)", True),
    )
)
_PREFIXES_AT_MOST = 6
_NCCL = re.compile(r"^(?P<host>[\w.-]{1,64}):(?P<pid>\d{1,9}):\d{1,9} \[(?P<rank>\d{1,4})\] ")
_INNER_RANK = re.compile(r"\[(?:[Rr]ank |rank)(?P<rank>\d{1,7})\]")
_RANK_FIELD = re.compile(r"(?:^|[\[(<|,;] ?)(?:global_?)?[Rr](?:ank|ANK)[ =:#_-]{0,2}(?P<rank>\d{1,6}) ?[\])>|,;]")
_LEVEL = re.compile(r"\b(?:DEBUG|INFO|WARN(?:ING)?|ERROR|CRITICAL|FATAL)\b", re.IGNORECASE)
_WORDS = re.compile(r"[a-z]{2,} [a-z]{2,}")
_FEW, _SHARE, _HEAD_LONG = 3, 0.3, 160
_NUMBER, _IN_BRACKETS = "0: ", "[0] "
"""srun --label; mpiexec -prepend-rank, and what somebody counts: that has each number once."""
_NO_HOSTS = frozenset(
    [
        "error",
        "warning",
        "warn",
        "info",
        "debug",
        "note",
        "fatal",
        "critical",
        "exception",
        "caused",
        "cause",
        "traceback",
        "file",
        "ld",
        "gcc",
        "nvcc",
        "runtimeerror",
        "valueerror",
        "importerror",
        "oserror",
        "e",
        "w",
        "make",
        "cmake",
        "pip",
        "conda",
        "docker",
        "srun",
        "sbatch",
        "salloc",
        "slurmd",
        "slurmstepd",
        "torchrun",
        "mpirun",
        "mpiexec",
        "prterun",
        "error_code",
        "typeerror",
        "step",
        "epoch",
        "loss",
        "state",
        "rate",
        "port",
        "version",
        "driver",
        "cuda",
        "name",
    ]
)


def _repeated_heads(lines: Sequence[str]) -> frozenset[str]:
    """Shapes of first words that so many lines share that they are somebody's prefix, also behind a time or a process.

    >>> sorted(_repeated_heads(["n1: a", "n1: b", "n2: c", "x y"])), sorted(_repeated_heads([f"2026-01-01 00:00:00 n{at} | x" for at in range(4)]))
    (['n0: '], ['n0 | '])
    """
    some = lines[:: len(lines) // _SAMPLE + 1]
    kept = _heads_of(some, max(_FEW, _SHARE * len(some)))
    if any(line.startswith("srun: ") for line in lines):
        kept |= {_NUMBER}  # srun --label
    for _ in range(_LEVELS):
        behind = [_without_prefixes(line, frozenset(kept)) for line in some]
        more = _heads_of(behind, max(_FEW, _MOST_LINES * len(some)))
        if not kept:
            more |= _heads_of(behind, max(_FEW, _SHARE * len(some))) - {_NUMBER}
        if more <= kept:
            break
        kept |= more
    return frozenset(kept)


def _heads_of(lines: Sequence[str], enough: float) -> set[str]:
    shapes: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        for pattern, repeated in _PREFIXES:
            found = pattern.match(line) if repeated else None
            if found is not None:
                shapes[_shape(found[0])][found[0]] += 1
    return {
        shape
        for shape, heads in shapes.items()
        if sum(heads.values()) >= enough
        and not _names_program(shape.strip(" :|[]"))
        and (shape != _IN_BRACKETS or max(heads.values()) >= _FEW)
    }


def _without_prefixes(line: str, heads: frozenset[str]) -> str:
    for _ in range(_PREFIXES_AT_MOST):
        found = _prefix(line, heads)
        if found is None:
            break
        line = line[found.end() :]
    return line


_MOST_LINES, _LEVELS = 0.6, 2
"""Of what stands behind another prefix: there some lines of any report begin alike (``2: eth0:``)."""
_SAMPLE = 4096


def _names_program(word: str) -> bool:
    """Whether it is a program or a level rather than a host: known, or letters that are all large.

    >>> _names_program("NVRM"), _names_program("NODE0"), _names_program("warning"), _names_program("node0")
    (True, False, True, False)
    """
    return word.lower() in _NO_HOSTS or (word.isalpha() and word.isupper())


def _shape(head: str) -> str:
    return re.sub(r"\d+", "0", head)


_NO_LABELS = unwrapping.Labels(None, "")


def _read(number: int, line: str, heads: frozenset[str], labels: unwrapping.Labels) -> LogLine:
    fields: dict[str, str] = {}
    text = line
    for _ in range(_PREFIXES_AT_MOST):
        found = _prefix(text, heads)
        if found is None:
            break
        for name, value in found.groupdict().items():
            if value and (name not in fields or (name == "rank" and not found[0].startswith("[default"))):
                fields[name] = (
                    value  # a rank that stands within is the program's own; what stands before it may count tasks or nodes
                )
        text = text[found.end() :]
    nccl = _NCCL.match(text)
    if nccl is not None:
        fields.setdefault("host", nccl["host"])
        fields.setdefault("pid", nccl["pid"])
    if labels.rank is not None:
        fields.setdefault("rank", str(labels.rank))
    inner = (_INNER_RANK.search(text[:400]) or _rank_field(text)) if "rank" not in fields else None
    if inner is not None:
        fields["rank"] = inner["rank"]
    return LogLine(
        number=number,
        text=text.rstrip(),
        printed=line,
        host=fields.get("host", labels.host),
        rank=int(fields["rank"]) if "rank" in fields else None,
        pid=int(fields["pid"]) if "pid" in fields else None,
        time=fields.get("time", ""),
    )


def _rank_field(text: str) -> re.Match[str] | None:
    """Return the rank that is a field of its own in the head of a log record, before the message.

    >>> _rank_field("ERROR,rank 5,llm.train:109: failed")["rank"], _rank_field("ERROR llm: lost the heartbeat (rank 3)")
    ('5', None)
    """
    found = _RANK_FIELD.search(text[:_HEAD_LONG]) if "ank" in text[:_HEAD_LONG] or "RANK" in text[:_HEAD_LONG] else None
    is_field = found is not None and _LEVEL.search(text[:_HEAD_LONG]) and not _WORDS.search(text[: found.start()])
    return found if is_field else None


def _prefix(text: str, heads: frozenset[str]) -> re.Match[str] | None:
    for pattern, repeated in _PREFIXES:
        found = pattern.match(text)
        if found is not None and (not repeated or _shape(found[0]) in heads):
            return found
    return None


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
    return same and not unwrapping.begins(after.text)


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
