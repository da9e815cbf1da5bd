"""Match lines with signatures, known messages, and consequences of other errors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec

from torchtune_sys.diagnosis import gpu_memory, wheel_index
from torchtune_sys.diagnosis.stated_forms import CODE, STATEMENT
from torchtune_sys.diagnosis.text.common_words import in_common_words
from torchtune_sys.diagnosis.text.cut_columns import begun, cut_lines
from torchtune_sys.diagnosis.text.cut_ends import completed
from torchtune_sys.diagnosis.text.lines import LogLine, joined, seldom
from torchtune_sys.knowledge import messages, translations
from torchtune_sys.knowledge.sentences import Sentence, SentenceSearch, in_letters_of_programs, is_about_code, well_spelt
from torchtune_sys.model import actions
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.rule import Rule


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One cause that a line may stand for."""

    cause: str
    weight: int
    """3 certain, 2 likely, 1 possible."""
    decided: tuple[str, ...] = ()
    """Facts, of which one makes it certain (knowledge.messages.Cause)."""
    fix: str = ""
    confirm: str = ""


def candidate_of(rule: Rule, weight: int) -> Candidate:
    """Return the cause that a rule stands for, with the first of its fixes."""
    return Candidate(cause=rule.cause or rule.id, weight=weight, fix=actions.text(rule.fix[0]) if rule.fix else "")


class Symptom(msgspec.Struct, frozen=True, kw_only=True):
    source: str
    line: LogLine
    candidates: tuple[Candidate, ...] = ()
    """The likeliest first; empty where the line follows from another error, or nothing knows what it stands for."""
    consequence: bool = False
    program: str = ""
    remedy: str = ""
    """Where to look in the training program, for words that tell of its own mistakes."""
    ranks: tuple[int, ...] = ()
    """Those that it is about, where the line names others than who printed it."""
    words: str = ""
    """Who prints the words."""
    merely_told: bool = False
    """Somebody tells it, and neither blames it nor found that something helps: any other cause that is as likely comes first."""
    is_blamed: bool = False
    """Somebody says that it was this, or that what is against it helped: it comes before what a program's message leaves open."""


CERTAIN, LIKELY, POSSIBLE = 3, 2, 1
FOLLOWS = frozenset(
    [
        "rank-killed",
        "rank-hung",
        "ranks-missing",
        "node-never-came",
        "port-refused",
        "port-dropped",
        "firewall-blocks-nccl",
        "fails-only-at-scale",
        "master-addr-wrong",
    ]
)
"""What is seen of a rank that another cause ended, or of a node that failed before."""
_WEIGHTS = {"certain": CERTAIN, "likely": LIKELY, "possible": POSSIBLE}
_LONGEST = 4000
_MOST = 4000
_TYPED, _LONG_PROSE = 200, 600
"""Lines, and their letters, in which a message is looked for in people's letters."""
_MUCH = 5
"""What a program prints is no small part of its line, unless its place stands before it: "disable this message" is of many programs."""


def symptoms_of(source: str, lines: Sequence[LogLine]) -> list[Symptom]:
    """Return what the lines stand for, in the order of the text."""
    lines = _without_tables(lines)
    reader = _Reader(source, "\n".join(line.text for line in lines))
    found: list[Symptom] = []
    for line in seldom(lines):
        if len(found) > _MOST:
            break
        symptom = reader.read(line)
        if symptom is not None:
            found.append(symptom)
    whole, pieces = _broken(reader, lines, found)
    found = [symptom for symptom in found if symptom.line.number not in pieces] + whole
    found += _cut(reader, lines, found)
    found += _retyped(reader, lines, found)
    return sorted(found, key=lambda symptom: symptom.line.number)


def is_no_output(text: str) -> bool:
    """Prose about code, a statement that prints, or the code of a traceback, which says again what the error's own line says."""
    text = _DIFF.sub("", text, count=1)
    return (
        is_about_code(text)
        or text.lstrip().startswith("raise ")
        or any(each.match(text.rstrip()) is not None for each in (STATEMENT, _PASSED, _COMMENT, _LOOKS_FOR, _OPTION))
        or (_TEMPLATE.search(text) is not None and not _FILLED.search(text))
        or ("xpected" in text and _EXPECTED.search(text) is not None)
    )


def _without_tables(lines: Sequence[LogLine]) -> Sequence[LogLine]:
    """Return the lines but those of Markdown's tables, which tell what may happen, not what did."""
    if not any(line.text.startswith("|") and _RULE.match(line.text[:_LONGEST]) for line in lines):
        return lines
    left: list[LogLine] = []
    in_table = False
    for line in lines:
        in_table = line.text.startswith("|") and (in_table or _RULE.match(line.text[:_LONGEST]) is not None)
        if in_table and left and left[-1].text.startswith("|"):
            del left[-1]  # the heads of the columns
        elif not in_table:
            left.append(line)
    return left


_RULE = pattern(r"\|(?: ?:?-{3,}:? ?\|){2,40}\s*$")


_DIFF = pattern(r"^[+-](?=\s+\S)")
"""The mark of a line that a patch adds or takes away."""
_TEMPLATE = pattern(r"\{\{-? [$.\w][^{}]{0,80} -?\}\}")
"""Of Jinja, Go or Ansible: nothing is filled in."""
_FILLED = pattern(r"FAILED! =>|\"(?:stderr|msg|stdout)\": ?\"|--format\b|\binspect\b")
"""Of what ran: a template is an argument of the command beside what it said."""
_PASSED = pattern(
    r"(?:[^\s:]{1,200}(?:::\w+){0,2}::test.{0,300} (?:PASSED|XFAIL|SKIPPED)(?: +\(.{1,400}\))?|test\w{0,120}\b.{0,300} \.\.\. (?:ok|expected failure|skipped .{1,400})|\s*\[ {7}OK \] \S.{0,200}?)(?: *\[ ?\d{1,3}%\]| \(\d+ m?s\))?$"
    r"|(?:PASSED|XFAIL|SKIPPED)(?: \[\d{1,4}\])? \S{1,200}(?:::test|\.py:\d).{0,600}$|\s*--- (?:PASS|SKIP): \S.{0,400}$|\s*[✓✔] \S.{0,400}$|ok \d{1,6} - .{1,400}$"
)
"""pytest, unittest, GoogleTest, Go, jest and TAP: a test that succeeded, was left out or fails by design, with what it tried in its name."""
_EXPECTED = pattern(
    r"(?i)\b(?:rais|threw|throw|caught|catch|fail|reject|refus|den[iy]|error|exception|got|saw)\w*\b[^\n]{0,300}(?<!work )(?<!works )(?<!working )(?<!worked )\bas expected\b(?=\W*$|: )|\((?:as )?expected\)\W*$"
    r"|\b(?:got|caught|raised|saw|hit) (?:the |an? )?expected (?:error|exception|failure)\b"
)
"""Of a test: it wanted this error."""
_COMMENT = pattern(
    r"\s*#+ ?(?:without|otherwise|else|needed|avoids?|to avoid|prevents?|work-?around|so that|because|in case|required|(?:this|that|it) (?:is|avoids|fixes|prevents|works around))\b"
    r"|\s*#+ .{0,160}\b(?:without (?:it|this|that|them)|otherwise)[:,]? {0,2}[\"'`]"
)
"""Of a script or a Dockerfile: why a line is there."""
_LOOKS_FOR = pattern(
    r"\s*(?:(?:sudo|ssh|for|if|while|do|then|watch|dmesg|journalctl|cat|kubectl|docker|pdsh|clush|srun)\b.{0,120}?\|\s?|ssh .{1,120}['\"] ?)(?:\w+ )?[efz]?grep (?:-[\w=-]{1,20} ){0,6}([\"'`]).{2,200}?\1"
)
"""A command of a script that looks for an error's text elsewhere."""
_OPTION = pattern(r"\s{1,12}(?:-\w, )?--[a-z][\w-]{1,40}(?:[ =]\[?[<A-Z]\S{0,40})?\s{2,40}[A-Z]\w{0,20}(?: \S{1,40}){3}")
"""Of a program's help: what an option does."""
_ELSEWHERE = pattern(
    r"/private/var/folders/|(?<![\w.])/Users/[\w.-]{1,40}/|/opt/homebrew/|\b[A-Za-z]:\\(?:[^\\\s\"'<>|]{1,80}\\){0,12}(?:Users|Program Files\S{0,6}|site-packages|Scripts)\\"
)
"""Paths of macOS and Windows: what has several causes on Linux has others there."""
_OF_THAT_SYSTEM = pattern(r"\[WinError \d|\bdlopen\(/|\.(?:dll|dylib)\b")
"""An error that only those systems have is known as theirs."""
OF_A_TEST = pattern(r"\btest_\w{1,120} \((?:\w{1,60}\.){0,8}\w{1,60}\) \.\.\. ")
"""unittest names a test before what it prints, which may be the error that the test provokes."""
_RAISED_HERE = pattern(r".{0,60}?\b[Rr]aise [\w.]{2,60}\(.{0,600}?(?<![\w.\"'])(?=[\w.]{0,80}(?:Error|Exception): \S)")
"""A traceback in one line: its last statement stands before the error's own words."""
_DAEMON, _HEAD = pattern(r"\b(?:automount|systemd|rpc\.gssd)\[\d{1,8}\]: "), 160
"""Who wrote a line of the system's log, where that decides what it says."""
_OTHER_NAMES = (("nvidia-container-cli.real: ", "nvidia-container-cli: "),)
"""By which a program calls itself where a distribution wraps it."""


class _Reader:
    """Reads the lines of one text: what a line stands for may depend on what stands elsewhere in the text."""

    def __init__(self, source: str, text: str) -> None:
        self._translations = translations.translations_in(text)
        text = translations.in_english(text, self._translations)
        self._source, self._text = source, text.lower()
        self._sentences = SentenceSearch(text)

    def read(self, line: LogLine) -> Symptom | None:
        """Return what the line says; where nothing knows it, what it says in the C library's own words."""
        raised = _RAISED_HERE.match(line.text[:_LONGEST])
        if raised is not None:
            symptom = self.read(msgspec.structs.replace(line, text=line.text[raised.end() :]))
            return None if symptom is None else msgspec.structs.replace(symptom, line=line)
        if is_no_output(line.text[:_LONGEST]):
            return None
        symptom = self._of_line(line)
        unknown = symptom is None or not (symptom.candidates or symptom.consequence)
        daemon = _DAEMON.search(line.printed[:_HEAD]) if unknown else None
        words = line.text if daemon is None else daemon[0] + line.text
        if unknown and (words := in_common_words(words, self._translations)) != line.text:
            other = self._of_line(msgspec.structs.replace(line, text=words))
            symptom = symptom if other is None else msgspec.structs.replace(other, line=line)
        words = line.text[:_LONGEST]
        if symptom is None or not symptom.candidates:
            return symptom
        if _ELSEWHERE.search(words) and not _OF_THAT_SYSTEM.search(words):
            return symptom if symptom.candidates[0].weight == CERTAIN else None
        return None if symptom.candidates[0].weight == POSSIBLE and OF_A_TEST.search(words) else symptom

    def _of_line(self, line: LogLine) -> Symptom | None:
        words = line.text[:_LONGEST]
        for other, name in _OTHER_NAMES:
            words = words.replace(other, name)
        sentence = self._sentences.sentence(words)
        if sentence is not None and not sentence.is_consequence and sentence.role != "program":
            if sentence.role == "noise":
                return msgspec.structs.replace(self._symptom(line, sentence, consequence=True), program="")  # never shown
            return self._symptom(line, sentence, _of_sentence(sentence, words, self._text))
        message = messages.match(words)
        if message is not None and message.severity != "info":
            candidates, consequence = _of_message(message, words, self._text)
            if candidates or consequence:
                return self._symptom(line, message, candidates, consequence=not candidates)
        if sentence is not None:
            symptom = self._symptom(line, sentence, consequence=sentence.is_consequence)
            return symptom if symptom.consequence else msgspec.structs.replace(symptom, remedy=sentence.remedy)
        if message is None or message.severity != "error":
            return None
        is_whole = _MUCH * len(message.template) > len(words) or CODE.search(words) is not None
        return self._symptom(line, message) if is_whole else None

    def _symptom(
        self,
        line: LogLine,
        known: Sentence | messages.CatalogueMessage,
        candidates: tuple[Candidate, ...] = (),
        *,
        consequence: bool = False,
    ) -> Symptom:
        return Symptom(
            source=self._source,
            line=line,
            candidates=candidates,
            consequence=consequence,
            program=known.program,
            words=known.source,
        )


def _of_sentence(sentence: Sentence, words: str, text: str) -> tuple[Candidate, ...]:
    """Return the causes of a sentence, the likeliest first; where the line itself decides between them, or the text does, those that it leaves."""
    is_only = len(sentence.causes) == 1
    is_told = sentence.program == "reporter"  # by somebody, not printed
    weight = CERTAIN if sentence.role == "cause" else LIKELY if sentence.role == "hint" and is_only and not is_told else POSSIBLE
    candidates = tuple(
        Candidate(cause=cause, weight=weight, fix="" if number else sentence.remedy)
        for number, cause in enumerate(sentence.causes)
    )
    if gpu_memory.DECIDED in sentence.causes:
        reasons = gpu_memory.reasons_of(words)
        candidates = tuple(Candidate(cause=cause, weight=value, fix=fix) for cause, value, fix in reasons) or candidates
    if wheel_index.DECIDED in sentence.causes:
        listed = wheel_index.reasons_of(words, text)
        candidates = tuple(Candidate(cause=cause, weight=value) for cause, value in listed) or candidates
    return candidates


def _broken(reader: _Reader, lines: Sequence[LogLine], found: Sequence[Symptom]) -> tuple[list[Symptom], frozenset[int]]:
    """Return what stands in lines that were broken at a width, and in none of their pieces; and the pieces that say less than the whole.

    A piece that is the only one to say something, and says another thing than the whole does, lacks the words that decide.
    """
    said = {symptom.line.number: tuple(each.cause for each in symptom.candidates) for symptom in found}
    more: list[Symptom] = []
    lesser: set[int] = set()
    for pieces, words in joined(lines):
        whole = None if is_no_output(pieces[0].text) else reader.read(msgspec.structs.replace(pieces[0], text=words))
        if whole is None:
            continue
        causes = tuple(each.cause for each in whole.candidates)
        of_pieces = {piece.number: said[piece.number] for piece in pieces if piece.number in said}
        if causes in of_pieces.values():
            continue
        more.append(whole)
        naming = [number for number, named in of_pieces.items() if named]
        lesser.update(naming if causes and len(naming) == 1 else ())
    return more, frozenset(lesser)


def _cut(reader: _Reader, lines: Sequence[LogLine], found: Sequence[Symptom]) -> Iterator[Symptom]:
    """Yield what the first and the last line say with the letters that the copy lost."""
    known = {symptom.line.number for symptom in found if symptom.candidates or symptom.consequence}
    for at in sorted({0, len(lines) - 1} if lines else ()):
        line = lines[at]
        if line.number in known or len(line.text) > _LONGEST or is_no_output(line.text):
            continue
        for whole in completed(line.text):
            symptom = reader.read(msgspec.structs.replace(line, text=whole))
            if symptom is not None and symptom.candidates:
                known.add(line.number)
                yield msgspec.structs.replace(symptom, line=line)
                break
    for line in () if any(symptom.candidates for symptom in found) else cut_lines(lines):
        if line.number not in known and len(line.text) <= _LONGEST and (symptom := _of_begun(reader, line)) is not None:
            known.add(line.number)
            yield symptom


def _retyped(reader: _Reader, lines: Sequence[LogLine], found: Sequence[Symptom]) -> Iterator[Symptom]:
    """Yield what people typed of a message in letters of their own, where no line says anything as it is printed; it is not certain."""
    for line in () if any(symptom.candidates for symptom in found) else islice(seldom(lines), _TYPED):
        is_prose = len(line.text) <= _LONG_PROSE and not CODE.search(line.text)
        words = in_letters_of_programs(line.text) if is_prose else well_spelt(line.text[:_LONGEST])
        if words != line.text[:_LONGEST]:
            symptom = reader.read(msgspec.structs.replace(line, text=words))
            candidates = symptom.candidates if symptom is not None else ()
            if symptom is not None and candidates:
                weighed = tuple(msgspec.structs.replace(each, weight=min(each.weight, LIKELY)) for each in candidates)
                yield msgspec.structs.replace(symptom, line=line, candidates=weighed)


def _of_begun(reader: _Reader, line: LogLine) -> Symptom | None:
    """Return what a line says that ends within a message, where all that it may begin say the same; it is not certain."""
    said = [reader.read(msgspec.structs.replace(line, text=whole)) for whole in begun(line.text)]
    known = [symptom for symptom in said if symptom is not None and (symptom.candidates or symptom.consequence)]
    if len({tuple(each.cause for each in symptom.candidates) for symptom in known}) != 1:
        return None
    candidates = tuple(msgspec.structs.replace(each, weight=min(each.weight, LIKELY)) for each in known[0].candidates)
    return msgspec.structs.replace(known[0], line=line, candidates=candidates)


def _of_message(message: messages.CatalogueMessage, line: str, text: str) -> tuple[tuple[Candidate, ...], bool]:
    consequence = False
    found: list[Candidate] = []
    for family in message.families:
        for cause in messages.causes_of(family):
            if cause.consequence:
                consequence = True
            elif cause.cause and _holds(cause.only_if, message, text, True) and not _holds(cause.unless, message, text, False):
                sure = bool(cause.decided_by) and _holds(cause.decided_by, message, text, False)
                found.append(
                    Candidate(
                        cause=cause.cause,
                        weight=CERTAIN if sure else _WEIGHTS.get(cause.confidence, POSSIBLE),
                        decided=cause.decided_by,
                        fix=cause.fix,
                        confirm=cause.confirm,
                    )
                )
        if found:
            break
    return tuple(found), consequence


def _holds(facts: Sequence[str], message: messages.CatalogueMessage, text: str, otherwise: bool) -> bool:
    """Whether one of the facts holds, as far as the text itself tells; ``rule:`` is asked for where the facts are."""
    if not facts:
        return otherwise
    for fact in facts:
        kind, _, value = fact.partition(":")
        if kind == "text" and value.lower() in text:
            return True
        if kind == "var" and messages.holds_of(fact, message.variables):
            return True
        if kind == "family" and value in message.families:
            return True
    return False
