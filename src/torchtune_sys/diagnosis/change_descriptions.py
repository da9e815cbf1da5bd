"""Recognise texts that describe or request a change of a program. The errors that they quote happened on another host.

A pull request, a commit's message, a release's notes, a patch, a request for a feature, an article on how to find faults. One of the words that only they have is enough, or two of those that others
have now and then; a log that is pasted has none of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from torchtune_sys.diagnosis.text.failures import begins_with_failure
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.model.patterns import pattern

_LONGEST, _LINES, _TITLES = 400, 400, 2
_VERBS = (
    "Add(?:s|ed|ing)?|Allow(?:s|ed)?|Clarif(?:y|ies|ied)|Edit(?:s|ed)?|Reword(?:s|ed)?|Rework(?:s|ed)?|Rewrite[sd]?|Simplif(?:y|ies|ied)|Tweak(?:s|ed)?|Assert(?:s|ed)?|Avoid(?:s|ed)?|Bump(?:s|ed)?|Catch(?:es)?|Change[sd]?|Detect(?:s|ed)?|Disable[sd]?|Document(?:s|ed)?|Drop(?:s|ped)?|"
    "Enable[sd]?|Ensure[sd]?|Expose[sd]?|Fix(?:es|ed|ing)?|Handle[sd]?|Implement(?:s|ed)?|Improve[sd]?|Increase[sd]?|Introduce[sd]?|Make[sd]?|Move[sd]?|Optimize[sd]?|"
    "Prevent(?:s|ed)?|Raise[sd]?|Reapply|Refactor(?:s|ed)?|Remove[sd]?|Rename[sd]?|Replace[sd]?|Report(?:s|ed)?|Revert(?:s|ed)?|Set|Silence[sd]?|Skip(?:s|ped)?|Support(?:s|ed)?|"
    "Suppress(?:es|ed)?|Surface[sd]?|Switch(?:es|ed)?|Update[sd]?|Upgrade[sd]?|Use[sd]?|Validate[sd]?|Warn(?:s|ed)?"
)
_TRIED = r"(?i:change|enable|make|move|set|switch|update|upgrade|use)(?i:[sd]|ing)? (?:.{2,120} )?(?i:gets?|got|breaks?|broke|fails?|failed|crash(?:es|ed)|causes?|with \w{2,20} fatal|(?:does|did)(?:n't| not) work)\b"
"""What somebody did, and what came of it, in the words of a change."""
_NAMED = r"(?i:use|support|report|change|drop|increase|set)(?i: of| for| in)\b"
"""A thing's name that begins like an order: the use of a GPU, support for a release."""
_CODE = r"(?i:raise|assert) [\w.]{2,60}(?:\(| ?[=!<>]=|,)"
"""A statement of Python with which a traceback shows where it ends: it orders nothing."""
_TITLE = pattern(
    r"^(?:#{1,3} )?(?:(?:\[[\w ./#-]{1,30}\]|[A-Z]{2,10}-\d{1,6}:?) ?){0,3}(?:(?:fix|feat|docs?|perf|refactor|chore|revert)(?:\([\w ./,-]{1,40}\))?!?: (?!command not found)\S|(?:ci|test|tests|build|style|nit)\([\w ./,-]{1,40}\)!?: \S"
    r"|# (?:ci|tests?|build|style|nit)!?: (?!.{0,120}\b(?:fail|error|not found|broke|hang|hung|crash|stuck|slow|cannot|can't))\w"
    r"|# \[(?:(?:[Cc][Ii]|[Bb]ug|[Hh]ot|[Tt]ests?|[Dd]ocs?)[ _-]?)?[Ff]ix(?:es)?\] ?\S"
    r"|(?:# \[?(?:Docs?|Documentation)\b\]?:?|(?:\[(?:Docs?|Documentation)\]|Docs?:|Documentation:)) (?!https?:|man |/|<)\S"
    rf"|(?:# )?(?:\[\w{{2,20}}\] )?(?:{_VERBS}|Capture[sd]?) .{{3,120}} \((?:[\w.-]{{1,40}}/[\w.-]{{1,60}})?#\d{{1,6}}\)$"
    r"|(?:# )?(?:Adds|Allows|Fixes|Implements|Improves|Introduces|Refactors|Renames|Reverts) (?!up\b|after\b|for me\b|it\b)[\w`'\"]+ \S"
    rf"|# (?:Pull Request: )?(?:\[[\w ./+-]{{2,30}}\]{{1,2}} ?){{0,3}}(?!{_TRIED})(?!{_NAMED})(?!{_CODE})(?!make (?:all|install|test|build|deps)\b)(?:(?i:also|always|automatically|better|correctly|do not|don't|gracefully|only|properly) )?(?i:{_VERBS}) \S)"
)
"""Of a change: a conventional commit's, or a heading that orders something."""
_COMMIT = pattern(
    rf"^(?:[Cc]i|CI|[Tt]ests?|[Bb]uild|[Ss]tyle|[Nn]it|[Dd]eps)!?: (?:(?i:{_VERBS})|cache|cover|free|install|mock|pin|run|split|test) \w(?!.{{0,120}}\b(?:fail(?:s|ed)|broke|hang|hung|crash(?:es|ed)?|stuck)\b)"
    r"|^(?:#{1,3} )?(?:[A-Za-z][\w.+-]{1,30} ){0,3}v?\d[\w.]{0,12} (?i:release notes|change ?log)\b.{0,30}$"
)
"""The first line of a commit's message that names what it touches, and of a release's notes."""
_REPORT = pattern(
    r"^# (?:\[(?:Bug|BUG|Usage|Installation|Crash|Issue)\](?: ?\[[\w ./+-]{1,30}\]){0,3}|(?:[A-Z][a-z]{1,12}\.? )?[Bb]ug(?: [Rr]eport)?(?=:)|Build (?:fail|error)):? ?(?!(?i:fix))"
)
"""Of a report, by the word that trackers put first: what it orders is what was done, and a patch in it is what was tried."""
_GOT = pattern(
    r"^(?:(?:(?:Hi|Hello|Hey)\W+)?(?:I|[Ww]e)(?:'m|'ve| am| have| keep| kept| also| just| still)* )?(?i:got|get|getting|saw|hit|hitting|receive[ds]?|receiving|encounter(?:ed|ing)?) (?:this|the following|these) (?:\w+ ){0,2}(?:error|exception|traceback|crash|failure)s?\b"
)
"""Of a report: whose title alone is like an order tells what he got."""
_DIFF = pattern(r"^diff --git a/|^@@ -\d+(?:,\d+)? \+\d+")
_SURE = pattern(
    r"(?:^[Tt]?h?i?s |[.!:] [Tt]his )(?:PR|patch|commit|pull request|merge request|changeset|MR|cherry-pick)\b(?! (?:broke|breaks|introduced|causes|caused|seems))"
    r"|^(?:Signed-off-by|Reviewed-by|Co-authored-by|Differential Revision|Pull Request resolved|Change-Id|Reviewed By|Approved by|ghstack-source-id): ?\S"
    r"|^(?:#{1,4} |\*\*)(?:What (?:does )?this (?:PR|pull request)|Which issue(?:\(s\))? (?:does )?this PR|Pull [Rr]equest (?:type|description)|Type of change|Why are these changes needed|What changes were proposed|Does this (?:PR|pull request))"
    r"|^[-*] \[[xX]\] I've signed off every commit"
    r"|^#{1,4} What's Changed\b|^\W{0,4}Full Changelog\W|^[-*] .{4,300} by @[\w-]{1,40}(?:\[bot\])? in (?:#\d|https://)"
    r"|^#{1,4} (?:\W{1,4})?(?:The feature, motivation\b.{0,16}|Feature [Rr]equest(?: description)?\W{0,3}|Motivation, pitch\W{0,3})$"
    r"|^(?:#{1,4} |\*\*)?(?:Is your feature request related to a problem|What would you like to be added|Describe the solution you'd like|Describe alternatives you've considered)\b"
    r"|^# (?:\[\w+\] )?.{0,60}\b(?:errors?|status(?:es)?|exit codes?|OOMs?|failures?|exceptions?|messages?)\b.{0,40}\b(?:not (?:being )?(?:reported|propagated|surfaced|logged|shown|displayed|handled|caught|exposed)|swallowed|misreported|mislabel\w*|hidden)\b"
    r"|^# .{0,80}\b(?:errors?|messages?|warnings?|exceptions?|logs?)\b (?:is|are|should be) (?:\w+ )?(?:hard to (?:understand|read)|confusing|misleading|unclear|clearer|(?:un|more )helpful|cryptic|vague|noisy)\b"
    r"|^__original_commit__ = \S"
    r"|^(?:# )?(?:Feature [Rr]equest|FEATURE REQUEST|Enhancement(?: request)?|Proposal|Design (?:note|document|doc)|RFC) ?[:：] ?\S"
    r"|^# \[(?:Feature(?: [Rr]equest)?|FEATURE(?: REQUEST)?|RFC|FEA|(?:Enhancement )?Proposal|Enhancement)\] ?:? ?\S|^# (?i:check|guard|validate) .{2,80} before \w+ing\b"
    r"|^Similar to (?:the (?:fix|change|PR) in )?(?:https://github\.com/\S{1,80}/pull/|#)\d"
    r"|^(?:[-*] )?(?:Add(?:s|ed)?|Clarif(?:y|ies|ied)|Document(?:s|ed)?|Extend(?:s|ed)?|Updat(?:e|es|ed)) (?:(?:an?|the|some|more) )?(?:[\w-]+ )?(?:tips?|notes?|docs|documentation|sections?|warnings?|paragraphs?|FAQ(?: entr(?:y|ies))?|README|user guide)\b(?: (?:about|on|to|for|that|in|how|when)\b|[.,:;]|$)"
    r"|(?:^|[.!] )(?:This )?(?:[Ff]ixes|[Cc]loses|[Rr]esolves|[Aa]ddresses|[Pp]artially (?:fixes|addresses|closes)|[Rr]everts|[Bb]ackports?(?: of)?) (?:https://github\.com/[\w.-]{1,40}/[\w.-]{1,60}/(?:issues|pull)/\d+|(?:[\w.-]{1,40}/[\w.-]{1,60})?#\d+)"
    r"|^(?:\W{0,6})PR (?:[Tt]ypes?|[Cc]hanges|[Cc]ategory|[Dd]ocs)\b|(?:这个|本|该|此|这次) ?PR\b|(?:この|本) ?PR\b|이 ?PR\b|^\[(?:[Cc]herry-?[Pp]ick|[Bb]ackport)\b[^\]\n]{0,24}\] ?\S"
    r"|^Stack from \[?ghstack|^(?:PR|MR|[Pp]ull [Rr]equest|[Mm]erge [Rr]equest)(?: ?[#!]\d{1,6})? ?: ?\S"
)
_ENOUGH_WITH_ANOTHER = (
    pattern(r"\b(?:[Ff]ix(?:es|ed)?|[Cc]lose[sd]?|[Rr]esolve[sd]?|[Ss]upersedes|[Rr]everts|[Bb]ackport of|[Cc]herry pick of):? (?:\w[\w.-]{0,40}/[\w.-]{1,60})?#\d{1,6}\b"),
    pattern(r"^(?:[-*] )(?:Added|Adds|Fixed|Fixes|Removed|Changed|Deprecated|Bump(?:ed|s)?) .{4,}"),
    pattern(r"^## \[?v?\d+\.\d+(?:\.\d+)?\]?(?: |$)|^#{1,3} (?:Bug ?[Ff]ixes|Fixed|Changed|Added|Deprecated|Removed|Improvements)\s*$"),
    pattern(r"^[-*] \[[xX ]\] (?!I\b|I'|My\b|An?\b|The official\b|Your?\b)(?=.{0,100}\b(?:tests?|[Bb]uilds?|CI|lint\w*|changelog|docs)\b)"),
    pattern(r"\b(?:the|this|my|our) (?:PR|patch|pull request|merge request)\b"),
)  # fmt: skip
_ORDER = pattern(
    rf"^(?!{_TRIED})(?!{_NAMED})(?!{_CODE})(?:{_VERBS}) (?!up\b|after\b|for me\b|it\b|to\b)[\w`'\"./-]+(?: [\w`'\"./-]+){{0,6}}$"
)
"""A title without a mark of one that orders something: a change's, where another hint is beside it."""
_HINTS = (
    pattern(r"^(?:#{1,4} |\*\*)?(?:Changes?(?: made)?|Solution|Motivation|Modifications?|Fix|Summary|Test [Pp]lan|Testing(?: [Ii]nstructions)?|Checklist|How (?:has this been|was this) tested\??|Root [Cc]ause|Rationale|Release [Nn]otes?|Why(?: \?)?|How(?: \?)?|What(?: \?)?)(?:\*\*)?:?\s*$"),
    pattern(r"\b(?:[Pp]reviously|[Bb]efore this (?:change|fix)|[Ww]ith this (?:change|fix)|[Aa]fter this (?:change|fix)|[Tt]his (?:change|fix) (?:\w{2,12}s)\b|now (?:shows?|prints?|raises?|returns?|reports?|falls? back)|(?:Added|Adds|Add) (?:an? )?(?:\w{3,12} ){0,2}tests?\b|instead of (?:failing|raising|crashing|hanging))"),
    pattern(r"\b(?:I|[Ww]e|it|[Ii]t now) (?:detect|handle|catch|skip|check|retry)s? (?:when|if|whether|that)\b|\b(?:and|then|to|now) falls? back\b|^Draft\b|[.!] Draft (?:while|until|for)\b"),
)  # fmt: skip
_MANUAL = pattern(
    r"^(?:#{1,4} |\*\*)?(?:\d{1,2}\.? )?(?:Symptoms?|(?:Common|Possible|Likely) [Cc]auses?|Step[- ]by[- ][Ss]tep(?: \w{3,12}){0,2}|Table of [Cc]ontents|Prerequisites|TL;DR|Introduction|Overview|Related (?:articles|pages)|Troubleshooting(?: \w{3,12})?|(?:How to )?[Vv]erify(?: the \w{3,12})?|Prevention)(?:\*\*)?:?\s*$"
)
"""Headings of what tells readers how to find faults; somebody who reports one has none of them, or one."""
_RECORD = pattern(
    r"^\S{2,60} \(\S{1,60}\) [\w. -]{2,60}; urgency=\w|^-- .{2,80} <\S{1,80}@\S{1,80}>  ?\w{3}, \d"
    r"|^\d{4}-\d\d-\d\d  .{2,80} <\S{1,80}@\S{1,80}>$|^\* \w{3} \w{3} [ \d]\d \d{4} .{2,80} (?:<|- )"
    r"|^(?:\* )?(?:Noteworthy [Cc]hanges|Changes|CHANGES|What's [Nn]ew|NEWS|Release [Nn]otes)(?: \w{2,9})? (?:in|of|for|since|with|WITH|IN|between|from) (?:the |version |release |Version |Release )?(?:[\w.+-]{2,30} )?\S{0,20}\d"
    r"|^(?:#{1,4} |\* |=+ ?)?(?:[\w.+-]{2,30} )?\[?(?:[Vv]ersion |[Rr]elease |v)?\d{1,4}\.\d{1,3}(?:\.\d{1,4})?(?:[a-z]{0,4}\d{0,3})?\]?(?::$| ?(?:-|–|\(|/|,| on| released)? ?\(?(?:\d{4}-\d\d?-\d\d?|\d{1,2} \w{3,9}\.?,? \d{4}|\w{3,9}\.? \d{1,2},? \d{4}|\w{3,9} \d{4})\)?:?$)"
)
"""The heads of what each release changed: Debian's, GNU's, RPM's, projects' own."""
_RELEASE = pattern(r"^(?:#{1,4} )\[?(?:[Vv]ersion |[Rr]elease |v)?\d{1,4}\.\d{1,3}(?:\.\d{1,4})?(?:[.-]?[a-z]{1,5}\d{0,3})?\]?$")
"""A heading that is a release's number alone, before the points of what it changed."""
_OUT = pattern(
    r"^\W{0,4}(?:\S{1,30} ){1,4}v?\d{1,4}\.\d{1,3}(?:\.\d{1,4})? (?:is (?:out|released|here)|has been released|released|est sortie?|ist da|veröffentlicht)\b"
)
_SECTION = pattern(
    r"(?i)^(?:#{1,6} |\*\*|[*-] )?\W{0,4}(?P<kind>highlights?|(?:bug ?)?fix(?:ed|es)|bugs? fixed|deprecat(?:ed|ions?)|known issues|upgrade notes?|upgrading|breaking(?: changes)?|new(?: features)?|features|added|changed|changes|removed|improvements?|improved|enhancements?|migration notes?"
    r"|修复|新增|优化|变更|移除|改进|新機能|修正|不具合修正|変更点|behoben|neuerungen|geändert|corrections?|nouveautés|correcciones|novedades|исправлено|добавлено|изменено)\W{0,6}$"
)
"""The headings under which a release's notes sort what it changed."""
_RECORDS = 2
_POINT = pattern(r"^[-*•] \S")
"""What a release changed, below the head that names it."""
_ADDED = pattern(r"^\+(?:$|[^\s+]| {2,})")
_ADDED_SHARE, _ADDED_LINES = 0.6, 5
_QUOTED = pattern(r"^> ?[-+] {4,}\S")
"""A line of a change, in the words of who reviews it."""


def is_one(lines: Sequence[LogLine]) -> bool:
    """Return whether the text describes a change.

    >>> is_one([LogLine(number=1, text=text, printed=text) for text in ("# fix(ci): free space to resolve 'No space left on device'", "")])
    True
    >>> is_one([LogLine(number=1, text=text, printed=text) for text in ("OSError: [Errno 28] No space left on device",)])
    False
    """
    texts = [line.text[:_LONGEST].strip() for line in lines[:_LINES]]
    texts = [text for text in texts if text and not text.startswith(("<", "```"))]
    if sum(map(_names_release, texts)) + _is_bare_release(texts) + _begins_with_release(texts) >= _RECORDS:
        return True
    if _sorts_changes(texts):
        return True
    if not texts or len(lines) > _LINES:
        return False
    if any(_SURE.search(text) for text in texts):
        return True
    if _COMMIT.match(texts[0]):
        return True
    is_report = _REPORT.match(texts[0]) is not None
    if not is_report and any(map(_DIFF.match, texts)):
        return True
    if not is_report and any(map(_TITLE.match, texts[:_TITLES])) and not any(map(_GOT.match, texts)):
        return True
    if len({text for text in texts if _MANUAL.match(text)}) > 1 or sum(_QUOTED.match(text) is not None for text in texts) > 1:
        return True
    added = sum(_ADDED.match(text) is not None for text in texts)
    if added >= _ADDED_LINES and added >= _ADDED_SHARE * len(texts):
        return True
    kinds = [sum(any(hint.search(text) for text in texts) for hint in hints) for hints in (_ENOUGH_WITH_ANOTHER, _HINTS)]
    kinds[0] += _ORDER.match(texts[0]) is not None
    return kinds[0] > 0 and sum(kinds) > 1


def _names_release(text: str) -> bool:
    return _RECORD.match(text) is not None or _RELEASE.match(text) is not None


def _is_bare_release(texts: Sequence[str]) -> bool:
    """Return whether the first line is a release's number and nothing else."""
    return bool(texts) and _RELEASE.match(f"# {texts[0]}") is not None


def _sorts_changes(texts: Sequence[str]) -> bool:
    """Return whether points stand below two headings of a release's notes at least, or below an announcement, and no program tells of a failure beside them."""
    kinds = {found["kind"].lower() for text in texts if (found := _SECTION.match(text)) is not None}
    is_notes = len(kinds) >= _RECORDS or any(map(_OUT.match, texts[:_TITLES]))
    return is_notes and sum(map(_is_point, texts)) >= _RECORDS and not any(map(begins_with_failure, texts))


def _is_point(text: str) -> bool:
    return _POINT.match(text) is not None


def _begins_with_release(texts: Sequence[str]) -> bool:
    """Return whether one of the first lines names a release, and points follow, and no program tells of a failure beside them."""
    if not (any(map(_names_release, texts[:_TITLES])) or _is_bare_release(texts)) or any(map(begins_with_failure, texts)):
        return False
    return sum(_POINT.match(text) is not None for text in texts) >= _RECORDS
