"""Sentences by which programs name a fault, and the causes that they stand for: the one table, whoever asks.

``diagnose``, the smoke test and the pre-flight look lines up (``SentenceSearch``), ``check --from`` asks which rules a text fails (``printed_messages``).
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from itertools import islice

import msgspec

from torchtune_sys.knowledge import operations, quoted_errors, tables
from torchtune_sys.knowledge.pattern_words import words_in_any_case, words_of
from torchtune_sys.model.patterns import WordIndex, folded, pattern
from torchtune_sys.model.snapshot import PrintedMessage

_WIDTH = 300
_PLACES = 32
"""Of one row in a text, that are looked at."""
NEAR, _NEAR_LINES = "near: ", 120
"""How an ``also`` or ``unless`` begins that says what belongs to the same failure, and how far off that stands: as far as the longest chains of tracebacks."""
_ABOUT_CODE = re.compile(
    r"\bpytest\.(?:raises|warns)\(|^\s*match=[rR]?[\"']|\.assert(?:Raises|Warns)(?:Regexp?)?\("
    r"|^\W{0,6}(?:This|The) (?:PR|patch|commit|pull request|merge request)\b"
    r"|\bto (?:catch|handle|ignore|swallow|suppress|detect) (?:the |an? |any )?(?:errors? )?[`'\"]?(?:[A-Z]\w{0,40}(?:Error|Exception)\b|cuda[A-Z]\w|E?[A-Z_]{4,60}\b)"
    r"|^(?:When(?:ever)?|If(?P<if>)) (?!.{0,240}\b(?:I|we|my|our|me|us|you run)\b)(?!running|trying|using|training|executing|launching|starting|importing|building|installing)"
    r".{5,160}, (?:the|your|an?|it|this|you) .{0,80}\b(?:refuses?|rejects?|will|may|can|(?(if)(?:fails? with|returns?|raises?|prints?)|cannot be))\b"
    r"|\b(?:returns?|sets? errno to|errno is) (?:NULL|-1|E[A-Z]{4,12})\b.{0,80}\b(?:if|when|where)\b(?! (?:I|we|my|our)\b)|\bfails? with E[A-Z]{4,12} (?:if|where|unless) (?!I\b|we\b|my\b|our\b)"
    r"|(?:^|[.?!] )(?:If|When) (?![^.?!]{0,160}\b(?:I|we|my|our|me|us|did you)\b)[^.?!]{3,160}\?"
    r"|(?:^|[.?!] )(?:What|Why does|How does|What does) [^.?!]{0,40}\bhappens?\b[^.?!]{0,20} (?:if|when) (?![^.?!]{0,160}\b(?:I|we|my|our|me|us)\b)[^.?!]{3,200}\?"
    r"|(?:^|[.?!] )What(?:'s| is| are) the (?:differences?|advantages?|purpose) (?![^.?!]{0,160}\b(?:I|we|my|our|me|us)\b)[^?!]{3,200}\?"
    r"|^(?:Please |Could you |Can you )?(?:document|describe|mention|clarify|explain in the docs) (?:what|how|that|when|why)\b(?! (?:happen|you|went|did))"
    r"|(?:^|[.?!] )To (?:avoid|prevent|fix|solve|get rid of|work around) (?![^.?!]{0,160}\b(?:I|we)\b)[^.?!\"'`]{0,40}[\"'`][^\"'`]{3,160}[\"'`],? (?:please )?(?:pass|use|set|run|add|increase|try|give|start|export)\b"
    r"|^It (?:would|might|could) be (?:\w+ )?(?:nice|good|great|useful|helpful|better|cool|handy) (?:if|to)\b(?! (?:some|any)(?:one|body)\b)(?!.{0,300}\b(?:I|we|my|our|me|us)\b)"
)
"""Somebody tells what a program does about errors, or what happens in general: none happened."""


class Sentence(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``data/sentences.csv``."""

    causes: tuple[str, ...]
    """Candidates, the likeliest first; empty where the words follow from another error, or the training program itself is wrong."""
    role: str
    """``cause``, ``hint``, ``consequence``, ``waited``, ``program``, ``inventory``, ``noise`` or ``fact``."""
    rule: str = ""
    """The rule that the words fail."""
    remedy: str = ""
    """In place of the cause's fix; empty: the words tell no more."""
    program: str = ""
    source: str = ""

    @property
    def is_consequence(self) -> bool:
        """Whether the words follow from another error."""
        return self.role in ("consequence", "waited")


class _Besides(msgspec.Struct, frozen=True):
    """What a row asks of the rest of the text."""

    pattern: re.Pattern[str]
    is_near: bool
    """It is looked for about the line, not in the whole text."""


def _besides(text: str) -> tuple[_Besides, ...]:
    return tuple(_Besides(pattern(part.removeprefix(NEAR)), part.startswith(NEAR)) for part in text.split(" && ") if part)


class _Row(msgspec.Struct, frozen=True, kw_only=True):
    pattern: re.Pattern[str]
    words: tuple[str, ...]
    """Of which each text that ``pattern`` matches holds one; empty if that is unknown."""
    in_any_case: bool
    """The text is ``folded`` before they are looked for."""
    also: tuple[_Besides, ...]
    unless: tuple[_Besides, ...]
    found: Sentence
    by_error: Mapping[str, Sentence] = {}
    """What an operation says with each error that it is known with, in place of ``found``."""

    def may_match(self, text: str, in_one_case: str) -> bool:
        """Return whether the pattern may match in a text; ``in_one_case`` is that text, ``folded``."""
        held = in_one_case if self.in_any_case else text
        return not self.words or any(word in held for word in self.words)

    def says(self, told: str) -> Sentence | None:
        """Return what the row says where ``told`` follows what it matched; ``None``: nothing is known of this error."""
        return self.by_error.get(operations.error_in(told)) if self.by_error else self.found


def _read(row: tables.Row) -> _Row:
    words = words_of(row["pattern"])
    return _Row(
        pattern=pattern(row["pattern"], re.MULTILINE),
        words=words or words_in_any_case(row["pattern"]),
        in_any_case=not words,
        also=_besides(row["also"]),
        unless=_besides(row["unless"]),
        found=Sentence(
            causes=tuple(filter(None, row["cause"].split("|"))),
            role=row["role"],
            rule=row["rule"],
            remedy=row["remedy"],
            program=row["program"],
            source=row["source"],
        ),
    )


def _of_operation(row: tables.Row) -> _Row:
    """Return the row of an operation, which says what its error tells."""
    read = _read({**row, "cause": "", "role": "hint", "rule": "", "remedy": ""})
    by_error = {
        name: msgspec.structs.replace(
            read.found, causes=tuple(filter(None, error["cause"].split("|"))), role=error["role"], remedy=error["remedy"]
        )
        for name, error in operations.errors_of(row["operation"]).items()
    }
    return msgspec.structs.replace(read, by_error=by_error)


@functools.cache
def _of_any_program() -> tuple[_Row, ...]:
    return (
        *map(_of_operation, tables.rows("operations")),
        *(_read(row) for row in tables.rows("sentences") if not row["stage"] and row["role"] != "fact"),
    )


@functools.cache
def _of_rules() -> tuple[_Row, ...]:
    return tuple(_read(row) for row in tables.rows("sentences") if row["rule"])


@functools.cache
def _of_waits() -> tuple[_Row, ...]:
    return tuple(row for row in _of_any_program() if row.found.role == "waited")


def tells_of_wait(line: str) -> bool:
    """Return whether a rank says that it waited in vain, and not for which.

    >>> tells_of_wait("[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)")
    True
    """
    in_one_case = folded(line)
    return any(row.may_match(line, in_one_case) and row.pattern.search(line) for row in _of_waits())


@functools.cache
def _of_stages() -> tuple[tuple[frozenset[str], _Row], ...]:
    return tuple((frozenset(row["stage"].split(",")), _read(row)) for row in tables.rows("sentences") if row["stage"])


@functools.cache
def _index() -> WordIndex:
    return WordIndex(tuple(map(folded, row.words)) for row in _of_any_program())


def _that_may_match(line: str) -> Iterator[_Row]:
    """Yield the rows of which the line holds a word, and those without words, in their order."""
    rows, in_one_case = _of_any_program(), folded(line)
    return (row for row in map(rows.__getitem__, _index().places(in_one_case)) if row.may_match(line, in_one_case))


class SentenceSearch:
    """The sentences as one text has them: what stands elsewhere in it is looked for once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._asked: dict[str, bool] = {}
        self._line, self._at, self._around = "", 0, (0, len(text))
        self._next: dict[str, tuple[int, int, int]] = {}

    def sentence(self, line: str) -> Sentence | None:
        """Return what ``line`` says, by the first row that fits: without causes where an operation's error tells none.

        >>> SentenceSearch("").sentence("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error.").causes
        ('dev-shm-too-small',)
        >>> SentenceSearch("").sentence("all is well, and there are no errors") is None
        True
        >>> SentenceSearch("").sentence("NCCL WARN Error: failed to extend /dev/shm/nccl-x to 9 bytes, error: Cannot allocate memory (12)").causes
        ('host-memory-oom',)
        """
        for row in _that_may_match(line):
            place = row.pattern.search(line)
            found = row.says(line[place.end() :]) if place is not None else None
            if found is not None and self.fits(row, line):
                return found
        return None

    @functools.cached_property
    def _in_one_case(self) -> str:
        return folded(self._text)

    def fits(self, row: _Row, line: str) -> bool:
        return all(self._holds(each, line) for each in row.also) and not any(self._holds(each, line) for each in row.unless)

    def _holds(self, besides: _Besides, line: str) -> bool:
        return self._there(besides.pattern) and (not besides.is_near or self._is_near(besides.pattern, line))

    def _is_near(self, pattern: re.Pattern[str], line: str) -> bool:
        """Lines are asked for in their order: the next place of a pattern is looked for when the one before is passed, so that it takes one walk."""
        first, last = self._lines_around(line)
        since, start, end = self._next.get(pattern.pattern, (last + 1, 0, 0))
        if not since <= first <= start:
            found = pattern.search(self._text, first)
            start, end = found.span() if found else (len(self._text) + 1,) * 2
            self._next[pattern.pattern] = (first, start, end)
        return end <= last

    def _lines_around(self, line: str) -> tuple[int, int]:
        """Return where the lines about ``line`` begin and end, at its next place behind the line before, or its first one; the whole text where it does not stand so in it."""
        if line == self._line:
            return self._around
        text = self._text
        start = text.find(line, self._at)
        start = start if start >= 0 else text.find(line)
        if start < 0:
            return 0, len(text)
        self._line, self._at, end = line, start, start + len(line)
        for _ in range(_NEAR_LINES):
            start, end = text.rfind("\n", 0, max(start, 0)), text.find("\n", end + 1)
            end = end if end >= 0 else len(text)
        self._around = max(start, 0), end
        return self._around

    def _there(self, pattern: re.Pattern[str]) -> bool:
        if pattern.pattern not in self._asked:
            words = words_in_any_case(pattern.pattern)
            may_be = not words or any(word in self._in_one_case for word in words)
            self._asked[pattern.pattern] = may_be and pattern.search(self._text) is not None
        return self._asked[pattern.pattern]


_LEAST_WORDS, _LEAST_LETTERS = 3, 16
"""Of a message, which nobody writes by chance."""


@functools.cache
def _phrases() -> Mapping[str, str]:
    rows = (row for row in _of_any_program() if row.found.causes and row.found.role in ("cause", "hint"))
    words = (word for row in rows for word in row.words if len(word) >= _LEAST_LETTERS and len(word.split()) >= _LEAST_WORDS)
    return {word.lower(): word for word in words}


_SPELT = {
    "kernal": "kernel",
    "availble": "available",
    "avaliable": "available",
    "availabe": "available",
    "avalible": "available",
    "compatable": "compatible",
    "compatibile": "compatible",
    "memmory": "memory",
    "out-of-memory": "out of memory",
    "momory": "memory",
    "libary": "library",
    "pytroch": "PyTorch",
    "devide": "device",
    "conection": "connection",
    "permision": "permission",
    "adress": "address",
}
_MISSPELT = re.compile(rf"\b(?i:{'|'.join(_SPELT)})\b")
"""Words of messages as people type them now and then."""


def well_spelt(line: str) -> str:
    """Return the line without common slips of who typed a message.

    >>> well_spelt("CUDA error: no kernal image is available")
    'CUDA error: no kernel image is available'
    """
    return _MISSPELT.sub(lambda word: _SPELT[word[0].lower()], line)


def in_letters_of_programs(line: str) -> str:
    """Return the line with the messages that somebody typed in small or capital letters, or misspelt, as the programs print them.

    >>> in_letters_of_programs("I get: torch not compiled with Cuda Enabled")
    'I get: Torch not compiled with CUDA enabled'
    """
    line = well_spelt(line)
    lower = line.lower()
    if len(lower) != len(line):
        return line
    for typed, printed in _phrases().items():
        at = lower.find(typed)
        if at >= 0:
            line = line[:at] + printed + line[at + len(printed) :]
    return line


_MOST_LINES = 2000


def first_known(text: str) -> str:
    """Return the first line that says an error of known causes; ``""`` where none does.

    >>> first_known("starting\\n[ERROR] Command not found: nvidia-container-cli, see x\\n")
    '[ERROR] Command not found: nvidia-container-cli, see x'
    >>> first_known("all is well\\n")
    ''
    """
    search = SentenceSearch(text)
    for line in islice(filter(str.strip, text.split("\n")), _MOST_LINES):
        sentence = search.sentence(line[:_WIDTH])
        if sentence is not None and sentence.causes and sentence.role in ("cause", "hint") and not is_about_code(line):
            return " ".join(line.split())[:_WIDTH]
    return ""


def is_about_code(line: str) -> bool:
    """Return whether the line tells what a program does about errors, rather than that one happened.

    >>> is_about_code("This PR raises a clear error for CUDA_ERROR_SYSTEM_NOT_READY"), is_about_code("got CUDA_ERROR_SYSTEM_NOT_READY")
    (True, False)
    """
    return _ABOUT_CODE.search(line) is not None or quoted_errors.is_example(line)


def in_stage(text: str, stage: str) -> Sentence | None:
    """Return what the words mean in a stage of the smoke test, where they mean something else than in any other program.

    >>> in_stage("OSError: [Errno 28] No space left on device", "dataloader").causes
    ('dev-shm-too-small',)
    >>> in_stage("OSError: [Errno 28] No space left on device", "train") is None
    True
    """
    return next(
        (row.found for stages, row in _of_stages() if not stages.isdisjoint(("any", stage)) and row.pattern.search(text)), None
    )


def printed_messages(text: str) -> dict[str, PrintedMessage]:
    """Return by rule id the first line of ``text`` that says what the rule stands for.

    >>> found = printed_messages("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.")["oom-kill-logged"]
    >>> found.line, found.is_failure, found.is_open
    ('RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed.', True, True)
    >>> printed_messages("all is well, and there is no space left on device")
    {}
    """
    found: dict[str, PrintedMessage] = {}
    search, in_one_case = SentenceSearch(text), folded(text)
    for row in _of_rules():
        sentence = row.found
        match = _place(row.pattern, text) if sentence.rule not in found and row.may_match(text, in_one_case) else None
        if match is not None and search.fits(row, match[0]):
            found[sentence.rule] = PrintedMessage(
                line=_line(text, match),
                remedy=sentence.remedy,
                is_failure=sentence.role not in ("fact", "inventory"),
                is_open=sentence.role == "hint",
            )
    return found


def _place(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """Where a line of the text says it that is not about code."""
    places = islice(pattern.finditer(text), _PLACES)
    return next((place for place in places if not is_about_code(_line(text, place))), None)


def _line(text: str, match: re.Match[str]) -> str:
    """Return the line of the match, from its words on where it is long."""
    start, end = text.rfind("\n", 0, match.start()) + 1, text.find("\n", match.end())
    line = " ".join(text[start : end if end >= 0 else None].split()).strip("`> ")
    return line if len(line) <= _WIDTH else " ".join(text[match.start() :][:_WIDTH].split("\n")[0].split())
