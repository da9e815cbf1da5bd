"""Find what somebody says was the cause, or what helped, in the words of people around a log.

``stated_causes.csv`` names the things that may be at fault, what is said of each where it is, and what is done with it where that helps. Four forms count. A *remedy*, in a clause
that says that it worked; a *blamed* thing, in a clause that puts the blame on it; a *claim*, words that by themselves say that something is broken; and a fault that is merely
*told* of a thing, in a report that somebody wrote in the first person: that is possible and no more. What is asked, denied, guessed, advised or told of a change of a program
is not taken.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec

from torchtune_sys.diagnosis.lines import LogLine, joined
from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.knowledge import tables
from torchtune_sys.knowledge.stated_words import filled

_SOLVED = re.compile(
    r"(?i)\b(?:solve[sd]|fixe[sd]|helps|helped|resolve[sd]|cured|(?:did|does) the trick|made? (?:it|everything|all|(?:the |my )?\w[\w.-]{1,24}) (?:work|run|go|start|load|build|compile)\w*|made? .{2,60} (?:disappear|go away|vanish)|(?:fail\w*|die[sd]|crash\w*|hung|hangs|killed) otherwise|got (?:it|everything) (?:working|to work|running)"
    r"|(?:now|again) (?:it |everything |training |all |that |this )?(?:works?|runs?|passes|starts)|(?:it|that|this|everything|training|all|both|they|jobs?|scripts?|code|tests?|model) (?:all )?(?:now works?|now runs?|now passes|worked|finally \w+)"
    r"|works? (?:now|again)|worked(?: for me| fine| well)?|runs? (?:now|again)"
    r"|(?:problem|issue|error|hang|freeze|crash|timeout)s? (?:disappear\w*|(?:is|was|were|are) gone|goes away|went away|vanishe[sd]|stopped|no longer)|no longer (?:hangs?|fails?|crash\w*|occurs?|happens?|freezes?)"
    r"|back to normal|(?:does|did|do)(?:n't| not) (?:happen|occur|appear|crash|fail|hang)\w* (?:any ?more|again)|(?:was|is) (?:the|my) (?:solution|fix|answer)|(?:works?|fix(?:es|ed)|solves?) (?:for me|(?:the|this|my) (?:problem|issue|error|hang))|seem(?:s|ed)? (?:to )?(?:fix|solve|help|work|run|do)\b|(?:get|got|gives?|see) the expected (?:results?|output|behaviou?r|bandwidth|speed))\b"
)
_ANSWER = re.compile(
    r"(?i)\b(?:solution|fix|remedy|answer|workaround) (?:for (?:me|us|this) |in my case |here )?was(?:(?: to)? (?:\w+ ){0,2})?\W{0,4}$"
)
"""What follows is what helped, where it is told of the past."""
_ANSWERED = re.compile(r"(?i)\b(?:solution|fix|remedy|answer|workaround)\b")
_WORKS = re.compile(
    r"(?i)\b(?:(?:it|everything|training|all|both|jobs?|scripts?|code|tests?|model) (?:all |seems to )?(?:works?|runs?|ran|passe[sd]|starts?|started)|works? (?:fine|well|as expected|correctly|properly|perfectly|normally|after|once|when|with)|runs? (?:fine|well|normally))\b"
)
_BY = re.compile(r"(?i)\b(?:with|after|when|once|by|using|setting|via|as soon as|if i|if we|i ran|export)\b.{0,30}$")
_FAILING = re.compile(
    r"(?i)hang|hung|stuck|fre+z|frozen|fail|error|time[ds]?[ -]?out|crash|\bslow|killed|refused|problem|\bissue|broken?\b|\blost\b|missing|(?:not|n't) (?:work|start|come up|run\b|usable|respond|connect|see\b|find|detect|boot|load|build|compile|install|import|recogni|visible|available|support)|unusable|unable to|corrupt|unreachable|\bdied\b|abort|deadlock|drain|dropp(?:ed|ing)|wrong|confus|reject|denied|unavailable|unknown error|\bdown\b|offline|disappear|vanish|\bloses?\b|mismatch|cancell?ed|interrupt|stopped|stops\b|refus|evict|preempt|exceed|stall|\bidle\b|\bbad\b|ENOMEM|ENOSPC|can(?:['’]t|not)\b|out of memory|crawl|\bfull\b|quota|strange|short (?:of )?an?\b|pending|rebooted|returns? false|too (?:old|new|small|low)\b|\bno (?:gpu|device|driver)s? (?:was|were|is|are|found|detected|visible|available)\b"
    r"|报错|错误|出错|失败|异常|崩溃|卡[住死]|被 ?kill|自动kill|[太过][低高旧新老]|返回 ?False|不可用|用不了|中断|退出|杀死|不[足够了]|无法|不能|溢出|满了|エラー|失敗|落ち(?:る|た|ます)|でき(?:ない|ません)|不足|오류|에러|실패|멈[추춤]|부족|종료|ошибк|не (?:работает|могу|запускается|хватает)|пада(?:ет|ют)|вылета|завис|нехват|Fehler|nicht|schlägt fehl|stürzt|erreur|échou|plante\b|insuffisant|\bfalla\b|insuficiente|lleno"
)
"""A remedy with which something works says little where nothing failed."""
_BLAMED = re.compile(
    r"(?i)\b(?:root cause(?:d|s)?\b|in the end (?:it|this|that) was\b|turn(?:s|ed) out\b|(?:the |my |our |actual |real |main |underlying |^)(?:problem|issue|cause|culprit|reason|error|failure|bug)s? (?:here |for me |in my case |for us )?(?:was|were|is|are)\b"
    r"|caused by\b|because(?: of)?\b|(?:due|owing) to\b|(?:traced|tracked|narrowed|comes?|came|boil(?:s|ed)) (?:it |this |back |down )*(?:to|from)\b|result of\b|stem(?:s|med) from\b|(?:found|figured|discovered)(?: out)? (?:that |out )?(?:the|a|one|it|some|two|our|my)\b"
    r"|reason\W{1,3}(?=\w)|cause\W{1,3}(?=\w))"
)
_IS_THE_CAUSE = re.compile(
    r"(?i)\b(?:(?:was|were|is|are|being) the (?:\w+ )?(?:problem|cause|culprit|issue|reason)|caus(?:ed|es|ing) (?:this|it|the|all|my|our|these)|led to (?:this|it|the))\b"
)
_NEGATED = re.compile(
    r"(?i)n't(?! (?:happen|occur|appear|crash|fail|hang)\w* (?:any ?more|again))\b|\b(?:not(?! (?:happen|occur|appear|crash|fail|hang)\w* (?:any ?more|again))|never|neither|nor|cannot|nothing|without(?! (?:the |any |an? )?(?:crash|error|problem|issue|hang)\w*))\b|\bno (?!longer|more\b|further|problem|issue|error|space left)|不是|并非|没有(?=\S{0,3}(?:不足|不够))|ではな|아니|не из-за|\bkein\b"
)
_HEDGED = re.compile(
    r"(?i)\b(?:can(?![\'’]t| (?:now|again|finally)\b)|already|if|whether|should|would(?! not|n't)|may|might|could(?! not|n't)|does(?! not)|unless|only hides|usually|typically|often|probably|perhaps|maybe"
    r"|possibly|suspect\w*|thought|assumed|believed|guess\w*|in (?:many|most|some) cases|e\.g|PR|pull request|patch|commit|merge|supports|support (?:for|is|was)|users? (?:can|may|should|who|often|report)|previously|(?:the|this|user|our) manual|mock\w*|we show|guides?|docs?|documentation|tutorial|read ?me|FAQ|simulat\w*|on purpose|by design|as (?:designed|expected|intended)|for example|we support|exporter|dashboard|how do i|needed)\b|(?<!seems )(?<!seem )(?<!seemed )\bto (?:fix|solve|resolve|avoid|prevent)\b|[?？]\s*$"
    r"|可能|避免|防止|修复|支持|新增|添加|优化|解决了?[^,，。]{0,12}问题|(?:の|する|した)場合|ときは|是不是|是否|会不会|吗|如果|应该|大概|也许|怀疑|かもしれ|(?:です|でしょう|ます)か|(?:인가|일까|을까|나)요|(?<=… )(?:하면|할)|може(?:т|те) быть|наверн|возможно|\bvielleicht\b|\bpeut-être\b|\bquizás?\b|\bwenn\b|\bsi\b"
)
_OWN_TRIAL = re.compile(r"(?i)\b(?:if|when|once) (?:i|we)\b(?! (?:am|are|want|need|should|could|would|can|may|might))")
"""Somebody tells what happens where he does it."""
_BLAME = re.compile(r"(?i)\b(?:because(?: of)?|due to|owing to|caused by|as a result of)\b")
_OPEN = re.compile(
    r"(?i)^\W*(?:if|when|whenever|in case|should|how|why|what)\b"
    r"|(?:\bnot|n't|\bnever|\bmay|\bmight|\bcould|\bcan|\bprobably|\bmaybe|\bperhaps|\bpossibly|\blikely|\busually|\boften|\bsometimes|\bwhether|\bsuspect|\bthought|\bthink)"
    r"(?: (?:be|been|is|it|it's|was|that|simply|just|only|necessarily|also|have))*\s*$"
    r"|\b(?:PR|pull request|patch|commit|merge|supports?|manual|guides?|docs?|documentation|tutorial|read ?me|tests?|simulat\w*|on purpose|for example|exporter|dashboard|handl\w+|errors? (?:out|like)|messages?|show\w*|report\w*)\b"
)
"""Before the word of blame: it is asked, denied, guessed, or a program's. (What fails may well be told with a "not": it does not start because …)"""
_ONCE_MORE = re.compile(
    r"(?i)^(?:(?:and |then |after that,? )?(?:now|that|this|it|everything|all|problem|issue|works?|worked|fixed|solved|resolved)\b|(?:the |my )?(?:solution|fix|remedy|answer) (?:is|was)\b)"
)
_ANNOUNCES = re.compile(r"(?i)(?:\w ?:|\b(?:add|added|adding|set|setting|run|running|with|using|use|by|was|is))\s*$")
"""What is told stands in the line below, as often before a block of code."""
_COMMAND = re.compile(r"\W{0,3}(?:export |sudo |docker |modprobe |ip |mpirun |nvidia-smi |echo |sysctl |--[a-z]|[A-Z_]{6,}=)")
_CLAUSES = re.compile(r"(?<=[.!?;。])\s+|(?<=\))\s{2,}|,? \b(?:but|however|although|though|except|whereas|while)\b ")
_ISSUE = re.compile(r"(?i)^\W{0,3}(?:\w+ )?(?:issue|problem|fault|failure|trouble|misconfiguration|setting)s?\b")
_IT_WAS = re.compile(
    r"(?i)\b(?:it|this|that|which|problem|issue) (?:was|is|turned out to be|ended up being|seems? to be|looks? like)\b|\bit's\b"
)
_UNSURE = re.compile(
    r"(?i)\b(?:will|must|need(?:s|ed)? to|have to|want(?:s|ed)?|make sure|ensur\w+|check\w*|verif\w+|detect\w*|handl\w+|warn\w*|report(?:s|ed|ing)?|recommend\w*|suggest\w*|requir\w+|feature|supports|implement\w*"
    r"|test(?:s|ing)|avoid\w*|prevents?|robust\w*|monitor\w*|alert\w*|simulat\w*|option|add(?:s|ed|ing)?|allow\w*|when|whenever|once|until|before|for example|e\.g|any|no|like|seems? fine|instead of|(?:and|but) (?:it|i|we|this|that|still))\b"
)
"""Beside a fault that is merely told: nobody says that it is so here and now."""
_ADVISES = re.compile(
    r"(?i)^\W*(?:(?:check|make|ensure|verify|try|add|allow|support|handle|detect|document|improve|implement|use|please|consider|see|note|fix|update|set|run|create|remove|avoid|test|this|these|how|what|why|is|are|do|does|can|has|have|did|was|could)\b)|\?\W*$"
)
_FIRST_PERSON = re.compile(
    r"(?i)(?<![\w/.])(?:I|I'm|I've|we|we're|we've|my|our|us|me|hi|hello|thanks|anyone)(?![\w/.])|[\u4e00-\u9fff]{4}|[\u3040-\u30ff]{3}|[\uac00-\ud7af]{2}|[\u0400-\u04ff]{4}|(?<!\w)(?:ich|wir|mein\w*|nous|notre|nosotros)(?!\w)"
)
_PARTS = re.compile(r"[,;:()]|\b(?:since|(?<!not )because|so|and|as|which|that)\b")
"""Between them a "not" or a "when" reaches no further."""
_UNTIL = re.compile(r"(?i)\buntil (?:i|we)\b.{0,20}$")
_CODE = re.compile(
    r"\w\[\d+\]:|(?i:exit code)|(?<=\w )error:|\.\w{1,4}:\d|::|\w\(\)|[{}|]|==|^\W*(?:ERROR|WARN\w*|INFO|DEBUG)\b|^\w:? \S+/|^\W*\w+(?:\s?\(\w+\))?: ?\S*[/\d]|\s-\S+="
)
"""What a program printed, or a table."""
_PROSE = re.compile(
    r"^[#>*\-\s\d.)(\[]*[A-Za-z`'\"\u0400-\u04ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af].*"
    r"(?:[a-z]{2,}\W+(?:\S+ )?[a-z]{2,}|[\u3040-\u30ff\u4e00-\u9fff]{4}|[\uac00-\ud7af]{2}\W+(?:\S+ )?[\uac00-\ud7af]{2}|[\u0400-\u04ff]{2,}\W+(?:\S+ )?[\u0400-\u04ff]{2,})|'s password: ?\S+@"
)
_LONGEST, _GAP, _NEAR, _AFTER, _BEFORE, _SHORT, _CELLS, _MOST = 1500, 90, 34, 80, 50, 400, 3, 200
_BETWEEN = r"(?:\W{1,3}[\w/%.'-]+)"


class _Said(msgspec.Struct, frozen=True, kw_only=True):
    """What is said of a thing, or done with it: behind its name, or in front of it."""

    behind: re.Pattern[str]
    before: re.Pattern[str]


class _Stated(msgspec.Struct, frozen=True, kw_only=True):
    """A row of ``data/stated_causes.csv``."""

    causes: tuple[str, ...]
    subject: re.Pattern[str] | None
    fault: _Said | None
    help: _Said | None
    setting: re.Pattern[str] | None
    claim: re.Pattern[str] | None
    alone: bool
    also: re.Pattern[str] | None
    unless: re.Pattern[str] | None
    fix: str
    source: str


class _Place(NamedTuple):
    """Where in a clause a thing stands with what is said of it, and what stands between these two."""

    start: int
    end: int
    gap: str = ""


class _Text(msgspec.Struct, kw_only=True):
    """A source as a whole: what a row asks of it is looked for once."""

    words: str
    failing: bool
    personal: bool
    fits: dict[int, bool]

    def holds(self, number: int, row: _Stated) -> bool:
        if number not in self.fits:
            self.fits[number] = (row.also is None or row.also.search(self.words) is not None) and (
                row.unless is None or not row.unless.search(self.words)
            )
        return self.fits[number]


def _whole(words: str) -> str:
    return rf"(?<!\w)(?:{words})(?!\w)"


def _said(words: str) -> _Said | None:
    if not words:
        return None
    return _Said(
        behind=re.compile(rf"(?i)({_BETWEEN}{{0,7}}?\W{{1,3}}){_whole(words)}"),
        before=re.compile(rf"(?i){_whole(words)}({_BETWEEN}{{0,2}}\W{{1,3}})$"),
    )


def _compiled(words: str) -> re.Pattern[str] | None:
    return re.compile(f"(?is){words}") if words else None


@functools.cache
def _table() -> tuple[dict[str, str], ...]:
    classes = {each["name"]: each["words"] for each in tables.rows("stated_words")}
    return tuple({key: filled(words, classes) for key, words in row.items()} for row in tables.rows("stated_causes"))


@functools.cache
def _rows() -> tuple[_Stated, ...]:
    return tuple(
        _Stated(
            causes=tuple(row["cause"].split("|")),
            subject=_compiled(_whole(row["subject"])) if row["subject"] else None,
            fault=_said(row["fault"]),
            help=_said(row["help"]),
            setting=_compiled(row["setting"]),
            claim=_compiled(row["claim"]),
            alone=bool(row["alone"]),
            also=_compiled(row["also"]),
            unless=_compiled(row["unless"]),
            fix=row["fix"],
            source=row["source"],
        )
        for row in _table()
    )


@functools.cache
def _any() -> re.Pattern[str]:
    """Return one pattern for the names of all things, and for the words that count by themselves: a line without any needs no look at the rows one by one."""
    names = "|".join(dict.fromkeys(row["subject"] for row in _table() if row["subject"]))
    alone = dict.fromkeys(row[each] for row in _table() for each in ("setting", "claim") if row[each])
    return re.compile(f"(?is){_whole(names)}|{'|'.join(alone)}")


@functools.cache
def _any_claim() -> re.Pattern[str]:
    return re.compile(f"(?is){'|'.join(row['claim'] for row in _table() if row['claim'])}")


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    """Yield what people say was the cause, or helped.

    >>> found = symptoms_of({"x": [LogLine(number=1, text=text, printed=text) for text in ("It hung. Setting NCCL_SOCKET_IFNAME=eth1 solved it.",)]})
    >>> [each.cause for symptom in found for each in symptom.candidates]
    ['nccl-wrong-interface']
    """
    for source, part in lines.items():
        whole = [msgspec.structs.replace(pieces[0], text=words) for pieces, words in joined(part)]
        spoken = list(_spoken(part, whole))
        words = "\n".join(line.text[:_LONGEST] for line in (*part, *whole)) if spoken else ""
        failing = _FAILING.search(words) is not None
        personal = failing and (len(words) < _SHORT or _FIRST_PERSON.search(words) is not None)
        text = _Text(words=words, failing=failing, personal=personal, fits={})
        looked_at = spoken if len(spoken) <= 2 * _MOST else [*spoken[:_MOST], *spoken[-_MOST:]]
        found = [(line, *each) for line, told in looked_at if (each := _stated(told, text)) is not None]
        sure = any(is_sure for _, _, is_sure in found)
        for line, row, is_sure in found:
            if is_sure or not sure:
                yield _symptom(source, line, row, is_sure)


def _spoken(part: Sequence[LogLine], whole: Iterable[LogLine]) -> Iterator[tuple[LogLine, str]]:
    """Yield the lines of prose that name a thing, also as they were before somebody broke them at a width, each with its words."""
    for at, line in enumerate(part):
        if _is_prose(line) and _any().search(words := _words(part, at)):
            yield line, words
    for line in whole:
        if _is_prose(line) and _any().search(words := line.text[:_LONGEST]):
            yield line, words


def _is_prose(line: LogLine) -> bool:
    return line.text.count("|") < _CELLS and _PROSE.search(line.text[:_LONGEST]) is not None


def _symptom(source: str, line: LogLine, row: _Stated, is_sure: bool) -> Symptom:
    weight = LIKELY if is_sure and len(row.causes) == 1 else POSSIBLE
    candidates = (Candidate(cause=cause, weight=weight, fix="" if at else row.fix) for at, cause in enumerate(row.causes))
    return Symptom(
        source=source, line=line, candidates=tuple(candidates), program="reporter", words=row.source, merely_told=not is_sure
    )


def _words(part: Sequence[LogLine], at: int) -> str:
    """Return the line, with the one below it where it announces that."""
    words = part[at].text[:_LONGEST]
    if _SOLVED.search(words[-_GAP:]):
        command = next((line.text for line in part[at + 1 : at + 7] if _COMMAND.match(line.text)), "")
        words = f"{words.rstrip('.: ')} by {command[:_LONGEST]}" if command else words
    if _ANNOUNCES.search(words[-_GAP:]):
        below = next((line.text for line in part[at + 1 : at + 4] if re.search(r"\w{3}", line.text)), "")
        return f"{words} {below[:_LONGEST]}"
    return words


def _stated(words: str, text: _Text) -> tuple[_Stated, bool] | None:
    """Return the first row that a clause of the line fits, and whether it is more than told."""
    clauses = [clause for clause in _CLAUSES.split(words) if clause]
    claims = text.failing and _any_claim().search(words) is not None
    for at, clause in enumerate(clauses):
        following = clauses[at + 1] if at + 1 < len(clauses) and _ONCE_MORE.match(clauses[at + 1]) else ""
        for each in (clause, *([f"{clause} {following}"] if following else []), *_blamed(clause)):
            row = _found(each, text) or (_claimed(each, text) if claims else None)
            if row is not None:
                return row, True
    row = _claimed(words, text) if claims and len(clauses) > 1 else None
    if row is not None:
        return row, True
    if text.personal and not _CODE.search(words):
        for clause in clauses:
            row = None if _ADVISES.search(clause) else _told(clause, text)
            if row is not None:
                return row, False
    return None


def _is_denied(clause: str, place: _Place, *, whole: bool = False) -> bool:
    """Return whether what stands around the words takes them back: a "not" in the same part of the sentence, a "maybe" anywhere.

    ``whole``: a remedy, which a "not" behind it takes back too, up to the colon that begins to tell of the fault, and one before it in the same part.
    """
    rest = _beyond(clause, place)
    near = _here(clause, place)
    if whole:
        near = f"{clause[: place.start].rpartition(', ')[2]} …{place.gap}… {clause[place.end :].partition(': ')[0]}"
    if whole and _UNTIL.search(clause[max(place.start - _GAP, 0) : place.start]):
        near = near.rpartition(" until ")[2]
    return bool(_NEGATED.search(near) or _HEDGED.search(rest))


def _here(clause: str, place: _Place) -> str:
    return f"{_PARTS.split(clause[: place.start])[-1]} …{place.gap}… {_PARTS.split(clause[place.end :], maxsplit=1)[0]}"


def _blamed(clause: str) -> Iterator[str]:
    """Yield what the clause puts the blame on."""
    blame = _BLAME.search(clause)
    if blame is not None and not _OPEN.search(clause[: blame.start()]):
        yield clause[blame.start() :]


def _found(clause: str, text: _Text) -> _Stated | None:
    """Return the row of which the clause says that what helps did, or on whose thing it puts the blame."""
    helped = bool(
        _SOLVED.search(clause) or _ANSWERED.search(clause) or (text.failing and (_WORKS.search(clause) or " until " in clause))
    )
    blamed = text.failing and bool(_BLAMED.search(clause) or _IS_THE_CAUSE.search(clause) or _IT_WAS.search(clause))
    for number, row in enumerate(_rows()) if helped or blamed else ():
        cures = _cures(row, clause, text.failing) if helped else ()
        if any(not _is_denied(clause, place, whole=True) for place in cures) and text.holds(number, row):
            return row
        blames = _blames(row, clause) if blamed else ()
        if any(not _is_denied(clause, place) for place in blames) and text.holds(number, row):
            return row
    return None


def _claimed(words: str, text: _Text) -> _Stated | None:
    """Return the row whose fault the words claim, whatever is around them."""
    for number, row in enumerate(_rows()):
        claims = row.claim.finditer(words) if row.claim is not None else ()
        if any(not _is_denied(words, _Place(*claim.span())) for claim in claims) and text.holds(number, row):
            return row
    return None


def _cures(row: _Stated, clause: str, failing: bool) -> Iterator[_Place]:
    """Yield what is done in the clause that helps against the row's cause, where it says that it did."""
    for each in row.setting.finditer(clause) if row.setting is not None else ():
        if _helped(clause, place := _Place(*each.span()), failing):
            yield place
    for thing in row.subject.finditer(clause) if row.subject is not None and row.help is not None else ():
        yield from (place for place in _together(row.help, clause, thing) if _helped(clause, place, failing))


def _blames(row: _Stated, clause: str) -> Iterator[_Place]:
    """Yield where the clause puts the blame on the row's thing."""
    for thing in row.subject.finditer(clause) if row.subject is not None else ():
        yield from (place for place in _together(row.fault, clause, thing) if _is_blamed(clause, place, _GAP))
        if row.alone and _is_blamed(clause, place := _Place(*thing.span()), _NEAR):
            yield place


def _together(said: _Said | None, clause: str, thing: re.Match[str]) -> Iterator[_Place]:
    """Yield where the thing stands together with what is said of it."""
    if said is None:
        return
    behind = said.behind.match(clause, thing.end(), thing.end() + _AFTER)
    if behind is not None:
        yield _Place(thing.start(), behind.end(), behind[1])
    start = max(thing.start() - _BEFORE, 0)
    before = said.before.search(clause[start : thing.start()])
    if before is not None:
        yield _Place(start + before.start(), thing.end(), before[1])


def _beyond(clause: str, place: _Place) -> str:
    """Return the clause without the words that were found: a "not" among them is the fault's own."""
    return _OWN_TRIAL.sub("", f"{clause[: place.start]} …{place.gap}… {clause[place.end :]}")


def _helped(clause: str, place: _Place, failing: bool) -> bool:
    before, after = clause[max(place.start - _GAP, 0) : place.start], clause[place.end : place.end + _GAP]
    if _SOLVED.search(before) or _SOLVED.search(after) or _ANSWER.search(before):
        return True
    if not failing:
        return False
    return bool(_UNTIL.search(before)) or bool(_BY.search(before) and (_WORKS.search(before) or _WORKS.search(after)))


def _is_blamed(clause: str, place: _Place, gap: int) -> bool:
    before, after = clause[max(place.start - gap, 0) : place.start], clause[place.end : place.end + _GAP]
    if _BLAMED.search(before) or _IS_THE_CAUSE.search(after):
        return True
    return gap == _NEAR and bool(_ISSUE.match(after) and _IT_WAS.search(before))


def _told(clause: str, text: _Text) -> _Stated | None:
    """Return the row whose fault the clause tells of its thing, as something that is so here."""
    for number, row in enumerate(_rows()):
        if row.subject is None or row.fault is None:
            continue
        for thing in row.subject.finditer(clause):
            for place in _together(row.fault, clause, thing):
                if _is_told(clause, place) and text.holds(number, row):
                    return row
    return None


def _is_told(clause: str, place: _Place) -> bool:
    return not (_UNSURE.search(_here(clause, place)) or _is_denied(clause, place))
