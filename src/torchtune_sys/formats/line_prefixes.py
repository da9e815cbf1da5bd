"""Recognise what launchers, log collectors, the kernel and people put before each line: a host, a process, a rank, a moment, a level."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from itertools import islice

from torchtune_sys.formats.kernel_log import message_start

_TIME = r"\d{4}[-/]\d\d[-/]\d\d(?:[T _]{1,2}|, )\d\d:\d\d:\d\d(?:[.,:]\d{1,9})?(?:Z| ?[+-]\d\d:?\d\d| UTC)?"
_LEVEL = "(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL|FATAL)"
_PREFIXES: tuple[tuple[re.Pattern[str], bool], ...] = tuple(
    (re.compile(pattern), repeated)
    for pattern, repeated in (
        (rf"\[(?P<time>{_TIME})(?: (?:[DEP]P\d{{1,4}})){{0,3}}(?: TP(?P<rank>\d{{1,4}}))?\] ?", False),  # sglang
        (  # vLLM; absl's and jax' records
            rf"(?:\(\w{{1,40}}\) )?{_LEVEL} (?:(?P<time>\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{{1,6}})?) |\d{{1,8}} )\[?[\w./-]{{1,120}}\.py:\d{{1,6}}\](?: |$)",
            False,
        ),
        (rf"{_LEVEL}:(?P<time>{_TIME}):[\w.]{{1,80}}:\d{{1,6}}: ", False),
        (rf"\[?(?P<time>{_TIME})[\]|,:]{{0,2}}[ \t]{{0,4}}(?:[-|] |std(?:out|err) [FP] )?", False),
        (
            r"(?P<time>[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) (?:(?P<host>[\w.-]{1,64}) (?!kernel:)[\w./-]{1,40}(?:\[\d{1,8}\])?|[\w./-]{1,40}\[\d{1,8}\]):(?: |$)",
            False,
        ),
        (r"\[(?P<time>\d\d:\d\d:\d\d(?:[.,]\d{1,6})?)\] ?", False),
        (r"[EWIF]\d{4} (?P<time>\d\d:\d\d:\d\d(?:\.\d{1,9})?) {1,8}(?P<pid>\d{1,9}) (?=\S{1,80}:\d{1,6}\] )", False),
        (r"[^\t]{1,80}\t[^\t]{1,80}\t(?=\d{4}-\d\d-\d\dT)", False),
        (r"\{[\w.]{1,60}:\d{1,6}\} [A-Z]{4,8} - ", False),
        (rf"{_LEVEL}:[\w.]{{1,60}}:(?: |$|(?=\w))", False),  # Python's logging: basicConfig, its usual formats, pytest
        (rf"[\w.]{{1,60}} - {_LEVEL} -(?: |$)", False),
        (rf"{_LEVEL} {{1,8}}[\w.]{{1,60}}:[\w.]{{1,60}}\.py:\d{{1,6}}(?: |$)", False),
        (r"#\d{1,4} \d{1,6}\.\d{1,4} ", False),  # BuildKit: the step and its seconds
        (r"\[(?:\d{1,9},)?(?:mpirank:)?(?P<task>\d{1,7})(?:,(?P<host>[\w.-]{1,64}))?\]<std(?:err|out|diag)>: ?", False),
        (r"\[(?:default|rank|trainer|worker|Rank |RANK |rank=|rank: ?|Rank: |GPU )(?P<rank>\d{1,7})(?:\|\d{1,4})?\]:? ?", False),
        (r"(?:rank|Rank|RANK)[ =]?(?P<rank>\d{1,7})(?::| ?\|| -) ", False),
        (r"(?P<task>\d{1,5}):(?: (?![\w.@-]{1,32}(?:: <|\s{1,20}inet))|$)", True),
        (r"[\w./-]{0,200}\.(?:log|out|err|txt):(?:\d{1,9}:)?", True),
        (r" {0,6}\d{1,6}\t", True),
        (r"[A-Za-z]\w{1,30}/(?P<rank>\d{1,5}) ", True),
        (r"\[(?P<task>\d{1,5})\](?: |:)", True),
        (r"\(Worker(?:_[DP]P0)?_TP(?P<rank>\d{1,5})(?:_EP\d{1,5})? pid=(?P<pid>\d{1,9})\) ?", False),  # vLLM
        (r"\((?:[\w.:]{1,60} )?(?:pid|PID)=(?P<pid>\d{1,9})(?:, ip=(?P<host>[\w.:]{2,45}))?\) ?", False),
        (r"\((?:\w{1,40} )?rank=(?P<rank>\d{1,7})(?: pid=(?P<pid>\d{1,9}))?\) ?", False),
        (r"\[pod/(?P<host>[\w.-]{1,253})/[\w.-]{1,63}\] ?", False),
        (r"(?P<host>[\w.-]{1,64}) {1,20}\|(?: |$)", True),
        (rf"{_LEVEL}(?:[ :|-]{{1,3}}[\w.]{{1,60}})?(?: ?[:|-] ?| )", True),
        (r"(?P<host>[A-Za-z][\w.-]{0,63}):(?: |$)", True),
        (r"\[(?P<host>[A-Za-z][\w.-]{0,63})\]:?(?: |$)", True),
    )
)
PREFIXES_AT_MOST = 6
_FEW, _SHARE = 3, 0.3
_NUMBER, _IN_BRACKETS = "0: ", ("[0] ", "[0]:")
"""srun --label; mpiexec -prepend-rank, torchrun's line prefix templates, and what somebody counts: that has each number once."""
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


def repeated_heads(lines: Sequence[str]) -> frozenset[str]:
    """Return the shapes of first words that so many lines share that they are somebody's prefix, also behind a time or a process.

    >>> sorted(repeated_heads(["n1: a", "n1: b", "n2: c", "x y"])), sorted(repeated_heads([f"2026-01-01 00:00:00 n{at} | x" for at in range(4)]))
    (['n0: '], ['n0 | '])
    """
    some = lines[:: len(lines) // _SAMPLE + 1]
    kept = _heads_of(some, max(_FEW, _SHARE * len(some)))
    if any(line.startswith("srun: ") for line in lines) or (len(lines) < _FEW and {_NUMBER} == _heads_of(lines, len(lines))):
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
                shape = _shape(found[0])
                cut = found.end() == len(line) and shape not in _IN_BRACKETS and not shape[-1].isspace()  # of an empty line
                shapes[f"{shape} " if cut else shape][found[0]] += 1
    return {
        shape
        for shape, heads in shapes.items()
        if sum(heads.values()) >= enough
        and not _names_program(shape.strip(" :|[]"))
        and (shape not in _IN_BRACKETS or max(heads.values()) >= _FEW)
    }


def _without_prefixes(line: str, heads: frozenset[str]) -> str:
    for _ in range(PREFIXES_AT_MOST):
        found = prefix(line, heads)
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


def prefix(text: str, heads: frozenset[str]) -> re.Match[str] | None:
    """Return the first prefix of the line; of those that stand before lines only now and then, one whose shape is in ``heads``."""
    for pattern, repeated in _PREFIXES:
        found = pattern.match(text)
        if found is not None and (not repeated or not heads.isdisjoint((shape := _shape(found[0]), shape.rstrip(), f"{shape} "))):
            return found
    return None


_WORD, _WORDS_AT_MOST, _HEAD = re.compile(r"[^ \t]+ "), 8, 200
"""Of what lines begin with that has none of the known forms."""


def by_writer(lines: Sequence[str]) -> Collection[Sequence[tuple[int, int]]]:
    """Return for each who wrote lines, as far as a prefix tells them apart, the numbers of these lines, and where in each the writer's own text begins.

    >>> for each in by_writer(["[rank0]: a", "[rank1]: b", "[rank0]:   c", "[rank1]: d"]):
    ...     print(each)
    [(0, 9), (2, 9)]
    [(1, 9), (3, 9)]
    >>> list(by_writer(["<14>1 09:05 n1 a", "<14>1 09:06 n1 b", "<14>1 09:07 n1  c"]))
    [[(0, 15), (1, 15), (2, 15)]]
    """
    heads, usual = repeated_heads(lines), _usual_words(lines)
    words = len([*_ends_of_words(usual)])
    found: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    for number, line in enumerate(lines):
        end = next(islice(_ends_of_words(line), words - 1, None), 0) if words else 0
        end = end if _shape(line[:end]) == usual else 0
        writer, start = "", message_start(line) or 0
        for _ in range(PREFIXES_AT_MOST):
            head = prefix(line[start:], heads)
            if head is None:
                break
            start = end if start < end < start + head.end() else start + head.end()
            writer += "".join(f"{name} {value}\n" for name, value in head.groupdict().items() if value and name != "time")
        found[writer].append((number, max(start, end)))
    return found.values()


def _usual_words(lines: Sequence[str]) -> str:
    """Return the most words that most lines begin with, digits aside."""
    some = lines[:: len(lines) // _SAMPLE + 1]
    heads = Counter(_shape(line[:end]) for line in some for end in islice(_ends_of_words(line), _WORDS_AT_MOST))
    return max((head for head, count in heads.items() if count >= max(_FEW, _MOST_LINES * len(some))), key=len, default="")


def _ends_of_words(line: str) -> Iterator[int]:
    return (found.end() for found in _WORD.finditer(line, 0, _HEAD))
