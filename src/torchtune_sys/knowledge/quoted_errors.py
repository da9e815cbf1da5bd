"""Sentences that quote an error to speak of the tests, the documents or the code that know it. None happened there."""

from __future__ import annotations

import errno
import re

from torchtune_sys.model.patterns import pattern

_LONGEST = 1500
_QUOTED = pattern(
    r"(?s)(?P<marks>`{1,3})(?=\S).{1,900}?(?P=marks)(?!\w)|“[^“”]{1,900}”|«[^«»]{1,900}»|(?<![\w\"])\"(?=[^\s\"])[^\"]{1,900}\"(?!\w)|(?<![\w'])'(?=[^\s'])[^']{12,900}'(?!\w)"
)
_SHORTEST = 14
_SOME = re.compile(r"\w \w+ \w|(?i:insufficient) ")
"""Three words: what somebody quotes is a message, whatever it says."""
_ERROR = pattern(
    r"(?i)error(?:\b|_)|\bexit ?code\b|exception\b|\bfail|\b(?:can|could|does|did|is|was) ?not\b|\bcan't\b|\bunable\b|\bdenied\b|\bmismatch|\bkilled\b|\bXid\b|\btoo (?:old|many|small|large)\b|\bno (?:space|such)\b|\bnot found\b|\bnot compiled\b|\brefused\b|\btimed? ?out\b|\binvalid\b|\bout of memory\b|\bWARN"
    r"|\bnot (?:implemented|supported|permitted)\b|\bno locks\b|\binsufficient\b|\bpre-?empt|\bcancelled\b|\bback-?off\b|\btaint \{"
)
_NAMES = pattern(
    r"\b(?:ErrImagePull|ImagePullBackOff|InvalidImageName|NodeHasInsufficient\w{2,20}|NodeHasDiskPressure)\b|\b\d{1,5}/\d{1,5} nodes are available: .{1,400}$"
)
"""What Kubernetes calls a state of a pod or a node, and its scheduler's answer: people name it in a sentence without marks around it."""
_STATE = r"(?:CrashLoopBackOff|ImagePullBackOff|ErrImagePull|InvalidImageName|CreateContainer(?:Config)?Error|ContainerCreating|OOMKilled|Evicted|NodeLost|Preempted|NotReady|Pending|Running|Succeeded|Failed|Completed|Unknown|Terminating|Error|DeadlineExceeded|PENDING|RUNNING|PREEMPTED|SUSPENDED|TIMEOUT|NODE_FAIL|BOOT_FAIL|OUT_OF_MEMORY|CANCELLED|COMPLETED|FAILED|DEADLINE|REQUEUED)"
_STATES = pattern(
    rf"\b{_STATE}\b\W{{0,3}}(?:\([^()\n]{{1,80}}\)\W{{0,3}})?(?:[,/|;]|\b(?:and|or)\b)(?:\s?(?:and|or)\b)?\W{{0,3}}(?=\b{_STATE}\b)"
)
_LISTED = 2
"""Kubernetes and Slurm: states of pods and jobs. Three in a row are a list of what there is."""
_NAMED = ("ImagePull", "InvalidImageName", "NodeHas", "nodes are available")
_PROSE = pattern(r"(?:(?<![\w-])[a-z]{2,14},? ){3}")
"""Three words in a row: somebody says it; a table and an event of Kubernetes have columns."""

_PRINTS = re.compile(
    r"\s*(?:E {2,}|\[|[\w.]{2,80}(?:Error|Exception|Warning)\b|[A-Z]{4,8}\b[:\s]|\d{4}-\d\d|\w{3} +\d{1,2} \d\d:|Traceback|[Rr]aise [\w.]{2,60}\(|\S{1,60}:\d+)"
)
"""How a line begins that a program prints: its words are no sentence about it."""
_HAPPENED = pattern(
    r"(?i)\b(?:I|we|you|they)(?:'ve|'m|'re)?(?: (?:have|has|am|are|do|can|will|still|always|sometimes|often|just|then|now|only|also|keep|kept|suddenly|randomly|constantly))* (?:get|got|gets|getting|see|saw|seen|seeing|hit|hitting|face[ds]?|encounter\w*|receive[ds]?|receiving|r[au]n into|meet|met|experienc\w+|end(?:ed)? up)\b"
    r"|(?:\b(?:it|everything|my|our|the)|(?<![\w ] )\bthis)(?: (?!(?:would|will|can|may|might|could|should|must|to)\b)[\w./-]+){0,5}? (?:fail(?:s|ed)?|crash(?:e[sd])?|die[sd]|dying|stop(?:s|ped)|hang(?:s)?|hung|br[eo]ak?s?|broke|abort(?:s|ed)?|exit(?:s|ed)|stuck|is killed|was killed)\b"
    r"|\b(?:my|our)(?: [\w./-]+){1,5}? (?:prints?|raises?|throws?|gives?|outputs?|g[oe]ts?) |\b(?:died|errors? out|errored|failing|crashing)\b|\bnow (?:raises|throws|fails|shows|prints|gives|says|reports|returns)\b"
    r"|\b(?:I|we)(?: [\w./-]+){1,8},? (?:and|but|then) (?:got|get|see|saw|hit|it|now)\b|\b(?:then|now|instead),? …|… after (?:each|every|all)\b|(?<!unless )(?<!sure )\bthere(?:'s| is| are| was| were) (?:an? |some |this |the |also )?…|… (?:is|was|gets|got|are) (?:raised|thrown|printed|shown|returned|logged) (?:while|since|at|during|after|again)\b"
    r"|\b(?:when(?:ever)?|once|while|as soon as|after) (?:I|we|my|our|starting|running|launching|importing|loading|the (?:job|training|second|third|first))\b"
    r"|\b(?:since|after) (?:today|yesterday|this morning|last|mon|tues|wednes|thurs|fri|satur|sun|the (?:\w+ )?(?:update|upgrade|reboot|move|maintenance)|(?:an?|the|my|our) )|\b(?:today|yesterday|last night|this morning|every (?:time|day|night|run|hour|few)|each time|again and again|once a day)\b"
    r"|\bon (?:my|our|one of|all|this|these|both|some) |\bin (?:my|our) (?:\w+ )?(?:cases?|clusters?|containers?|environments?|jobs?|machines?|networks?|pods?|servers?|setup|training|workstation)\b|\b(?:does|did|do)(?: not|n't) (?:help|work|apply)\b|\byet (?:\w+ ){1,3}still\b|\b(?:any (?:help|ideas?|hints?)|help me|please help|how (?:do|can|to|could|should) (?:I )?(?:fix|solve|resolve|get rid)|what (?:should|can|shall) (?:I|we) do)\b"
)
"""Somebody tells beside the quoted words that it happened to him."""
_NESTED = re.compile(r"`([\w.@+-]{1,60})'")
"""As programs of GNU quote a name: its mark ends no quotation."""
_SUPPOSED = pattern(
    r"(?i)\b(?:when(?:ever)?|if|in case|once|where) (?:you|someone|somebody|users?|people|anyone|one|they|an? (?:user|customer|job|node|host|pod)) (?:\w+ )?(?:gets?|sees?|hits?|faces?|encounters?|receives?|runs? into|meets?|(?:pending|waiting) (?:with|in))\b"
    r"|(?<!\bI )(?<!can )(?<!could )\b(?:checks?|expects?|asserts?|verif(?:y|ies)|ensures?|makes? sure) (?:[\w-]+ ){0,4}that (?=[^,.;:!?]*…)[^,.;:!?…]*"
)
"""It happens to nobody yet, or is what is wanted."""
_BY_SOMEBODY = pattern(r"(?i)(?<![\w/.'])(?:I|I'[mvd]\w?|my|me|we|we'\w+|our|us|mine|ours)(?![\w/.])")
_SEEN = pattern(
    r"(?i)(?<!\bto )\b(?:rais|print|show|g[ai]v|thr[oe]w|return|report|log|sa[iy]|output|emit|dump|display|warn|complain|quit|fail|crash|stop|hang|hung|abort|exit|terminat|kill|block|break|broke|d[iy](?:e|ing)|caus|trigger|produc|yield|lead|led|result|end|occur|happen|appear|detect|pop|come|came|persist|remain|start|see|seen|saw|fix|solv|resolv|avoid|work|rid|help|run|ran)(?:e|e?s|e?d|e?n|\w?ing|t|\w?ed|ures?|ions?|around)?\b"
    r"|\b(?:logs?|dmesg|journal\w*|syslog|console|stderr|stdout|terminal|screen|trace\w*|errors?|problems?|issues?|exceptions?|symptoms?|reasons?|bugs?)\b"
    r"|\b(?:nodes?|ranks?|hosts?|machines?|servers?|gpus?|cards?|containers?|pods?|jobs?|nvidia-smi|docker|training|import\w*|python)\b"
)
"""What a sentence speaks of that tells what a host, a run or its output did: it may have happened."""
_IF = pattern(
    r"(?i)(?:^|[.;:#>*/-] ?)\W{0,4}(?:if|si|wenn|falls|whenever|when(?= there\b)) (?:(?!(?:I|we|my|our)\b)[^\s,.;:…]+ ){1,8}…"
    r"|(?:^|[.;:#>*/-] ?)\W{0,4}(?:if|whenever) (?:an?|any|one|some) (?:(?!(?:I|we|my|our)\b)[\w-]+ ){1,6}(?:dies|fails|crashes|hangs|breaks|is (?:lost|killed|full|down)), (?:[\w'-]+ ){1,6}…"
)
_CODE_OR_CELL = re.compile(r"\s*(?://|/\*|\|[^|]{3,300}\|[^|]{2,300}\|)")
"""A comment of code, a row of a table: what stands there happens to others."""
_SENTENCE = re.compile(r"\s*(?:[-*>] |\d{1,2}[.)] )?[A-Z`\"“…][^…]{0,600}…[^…]{0,600}[.!](?:\s|$)")
_BESIDE, _BEFORE = 4, 2
"""Words of a sentence that quotes something; fewer are a label of what is quoted."""
_LABEL = re.compile(
    r"^[^…]*(?:[:=>|]|\b(?:error|message|traceback|warning)s?)\W{0,4}…\W*$|^\W*…(?:\W*$|,? (?:when|while|on|in|at|with|after|during|for|from|under|using|upon|and|but|if)\b)",
    re.IGNORECASE,
)
"""Words of a heading, or a label before what a program said."""
_CLAUSES = pattern(r"[.;:!?](?=\s)|, (?=(?:but|yet|then|so|however|although|though|and)\b)")
_WORD = r"(?!(?:and|but|then|not|no|never|without|which|because|with)\b|\w+n't\b)[\w()./'-]+ "
_WORDS = f"(?:{_WORD}){{0,%d}}"
_SAYS = r"(?:says?|said|reports?|prints?|shows?|gives?|gave|returns?|raises?|throws?|outputs?|ends?|finds?|found|complain\w*)"
_DOCUMENT = r"(?:docs?|documentation|read-?me|FAQ|tutorial|change ?log|release notes?|slides?|hand-?book|manual|wiki|docstring|spec(?:ification)?|lecture|book|article|blog(?: post)?|guide|page|chapter|glossary|help desk|cheat ?sheet|runbook|comment|announcement|translations?)"
_READER = r"(?:parser|reg(?:ular )?ex(?:p|pression)?s?|pattern|matcher|classifier|handlers?|decorator|linter|filter|detector|dictionary|mapping|table|rules?|heuristic|middleware|grammar|log scraper|wrapper)"
_WATCHER = r"(?:health check(?:er)?|monitor\w*|alert\w*|dashboard)"
"""What also tells of failures that it found: its "detects" may have happened."""
_DATA = r"(?:data\w*|batch\w*|inputs?|models?|tensors?|images?|samples?|loaders?|text|tokens?|weights|backend|runs?|training)"
_ABOUT = tuple(
    pattern(rf"(?i){each}")
    for each in (
        rf"\b(?:checks?|expects?|asserts?|verif(?:y|ies)|ensures?|requires?|confirms?) (?:that {_WORDS % 8}|(?:(?!{_SAYS}\b){_WORD}){{0,8}})…",
        rf"(?<!\bI )(?<!\bwe )(?<!\byou )\b(?:must|should|shall|is (?:expected|supposed|meant) to) (?:also |only |still )?(?:raise|print|match|recogni[sz]e|return|report|throw|contain|say|detect|catch|ignore|name|find|translate|handle|emit) {_WORDS % 4}…",
        rf"\b{_DOCUMENT} (?:now |also |already |only |still )?(?:lists?|says?|mentions?|describes?|explains?|shows?|quotes?|documents?|names?|contains?|covers?|defines?|cites?|has|have|starts? with|begins? with) {_WORDS % 6}(?:with )?…",
        rf"\bin (?:the|our|my|a|this|its) (?:\w+ )?{_DOCUMENT},? (?:(?:I|we|they|it|you) )?(?:\w+ )?(?:show|explain|describe|quote|mention|list|document|say)s? {_WORDS % 5}…",
        rf"\b(?:add|cover|describ|document|entry|explain|includ|list|mention|note|paragraph|put|quot|section|show|translat|warn|word|writ)\w* .{{0,60}}…,? {_WORDS % 6}(?:in|on|into|to|from|for) (?:the|our|my|a|an|this|its) (?:[\w-]+ ){{0,2}}{_DOCUMENT}\b",
        rf"\b{_READER}s? (?:\w+ )?(?:should |must |can |does |will )?(?:match|recogni[sz]e|map|ignore|translate|catch|turn|convert|swallow|suppress|detect|handle|filter|classif|label|complain|looks? for|search(?:es)? for|grep|find|know)\w* {_WORDS % 6}…",
        rf"\b{_WATCHER}s? (?:\w+ )?(?:should |must |can |does |will )?(?:match|recogni[sz]e|map|ignore|translate|turn|convert|swallow|suppress|classif)\w* {_WORDS % 6}…",
        r"\b(?:recogni[sz]es?|maps?|translates?|classif(?:y|ies)|swallow(?:s|ed)?|suppress(?:es)?|turns?|converts?|mock(?:s|ed)?|simulates?|injects?|parses?|words?|rewords?|rephrases?|patch(?:es)?|stubs?) (?:(?:the|an?|any|this|our|error|message|line|text|exception|string) )*…",
        rf"\b(?:mock|stub|fake|dummy|(?:fault )?injector|fixture)\b(?!(?: \w+)? {_DATA}\b)(?: {_WORDS % 5}| )…",
        rf"\btests? (?:that|whether) {_WORDS % 6}…",
        r"\b(?:wording|text|message|translation|detection|handling|spelling|meaning|tests?|checks?|handlers?|regex|parser|pattern|support|fixture) (?:of|for) (?:the )?(?:(?:message|error|text|string|exception|line) )?…(?! (?:in|on) my)",
        r"\bdefines? (?:the |this )?(?:message|error|text|string|constant|exception) …",
        r"\b(?:replac|chang|renam|improv|reword|correct|shorten|translat|edit)(?:es?|ing) (?:the )?(?:text|message|wording|error message|string|words) (?:\w+ ){0,2}…",
        r"… (?:is|was|are) (?:no longer|never|not) (?:raised|thrown|printed|shown|logged) (?:any ?more|again|by|in|since)?|…(?: \w+){0,4} is (?:a|an|the|our|just a|only a) (?:\w+ ){0,2}(?:test|test vector|example|placeholder|sample|constant|fixture|string)\b",
        r"\b(?:wrote|write|writes|put|puts|insert(?:s|ed)?|paste[sd]?) … (?:into|in|to) .{0,40}\b(?:by hand|to (?:test|see whether|check))\b",
        rf"\b(?:users?|people|you|they) will (?:then |also |only )?(?:find|get|notice|see) {_WORDS % 6}…",
        r"\b(?:deliberately|intentionally|purposely) [^…]{1,160} so that [^…]{0,40}…",
        rf"^\W*(?:programs|applications|libraries|tools|users) (?:that|which|who|with|without) [^…;]{{3,80}} (?:get|see|receive) {_WORDS % 3}…",
        r"…,? (?:means?|indicates?|signals?|stands? for|denotes?) (?:that )?(?:the|an?|your|it|one|some)\b",
        r"…[:,]? (?:an? |the )?(?:chapter|lesson|section|lecture|talk|tutorial) (?:of|in|on|explains)\b",
        r"\b(?:I|we) (?:have |had |once |also )*(?:read|heard|know|knew|learn(?:ed|t)|remember|was told|were told|understand)\b(?! (?:why|how|what)\b)[^….!?]{0,120}…",
        r"\b(?:people|some|others|everybody|everyone|posts?|threads?) (?:say|claim|write|warn|report)s?\b[^…]{0,40}… (?:can|may|might|could|would)\b",
        r"\bno …(?! (?:but|until)\b)|\bso that no (?:\w+ ){1,4}…",
        r"^\W*(?:jobs|tasks|processes|pods|ranks|runs|users|workers|programs) (?:that|which|who|with|without) [^…;]{3,80} (?:are|will be|get) (?:killed|stopped|ended|cancell?ed|rejected|refused|denied) (?:\w+ ){0,3}…",
        r"^\W*if (?:someone|somebody|users?|people|anyone|anybody|a (?:user|customer|colleague|student)|they) (?:sees?|gets?|hits?|runs? into|reports?|encounters?|asks? about) …",
    )
)
"""What is said around the quoted words, which "…" stands for."""
_ANYWHERE = pattern(
    rf"(?i)\b(?:on purpose|by design|deliberately raise[sd]?|as (?:it should|designed|intended))\b|\bnothing is (?:wrong|broken)(?: here)?(?=[.,;])|\b(?:just|merely|only) curious\b|\bno action (?:is )?(?:needed|required)\b|\bthis is (?:expected|intended|normal)\b(?! ?\?)|\bwhere (?:in .{{1,40}} )?(?:is|are) (?:this|the|that) (?:message|text|string|wording) (?:defined|written|kept)\b|\b(?:write|put|add|mention|document|describe) (?:it|this|that|them) (?:in|into|to) (?:the|our|my|a) (?:\w+ )?{_DOCUMENT}\b"
)


def is_example(line: str) -> bool:
    """Return whether the line quotes an error as an example, and nobody says that it happened to him.

    >>> is_example("Our CI checks that `RuntimeError: CUDA error: no kernel image is available` is raised.")
    True
    >>> is_example("        if error.errno in (errno.EMFILE, errno.ENFILE):"), is_example("OSError: EMFILE: too many open files")
    (True, False)
    >>> is_example("==ERROR== Profiling failed because a driver resource was unavailable.")
    False
    >>> is_example("Our CI fails since Monday: `RuntimeError: CUDA error: no kernel image is available` is raised.")
    False
    """
    if _lists_states(line[:_LONGEST]) or _asks_by_name(line[:_LONGEST]):
        return True
    spoken = _spoken(line)
    if "…" not in spoken:
        return False
    if _IF.search(spoken):
        return True
    if _HAPPENED.search(spoken):
        return False
    clauses = [clause for clause in _CLAUSES.split(spoken) if "…" in clause]
    if _ANYWHERE.search(spoken) is not None or any(about.search(clause) for clause in clauses for about in _ABOUT):
        return True
    told = _BY_SOMEBODY.search(spoken) or any(map(_SEEN.search, clauses))
    return not told and _SENTENCE.match(spoken) is not None and _is_sentence(spoken)


_COMPARED = pattern(
    r"(?:[=!]=|\bin [({\[]) ?(?:errno\.E[A-Z]{2,12}, ?){0,6}-?(?:errno\.)?(E[A-Z]{2,12})\b(?!:)|^\s*case -?(E[A-Z]{2,12}):"
)
"""Code that asks for an error by its name, which must be one of errno's: ``== ERROR`` heads a message."""


def _asks_by_name(line: str) -> bool:
    return any((one[1] or one[2]) in _ERRNO_NAMES for one in _COMPARED.finditer(line))


_ERRNO_NAMES = frozenset(name for name in dir(errno) if name.startswith("E"))


def _lists_states(line: str) -> bool:
    return line.count(",") + line.count("/") + line.count("|") + line.count(" or ") >= _LISTED - 1 and (
        sum(1 for _ in _STATES.finditer(line)) >= _LISTED and not _HAPPENED.search(line)
    )


_ASKED = pattern(
    r"(?i)(?:^|[.!?;:] )\W{0,4}(?:(?:what|how) (?:do|does|did)\b(?! (?:I|we)\b)|what(?: is|'s) (?:the )?(?:meaning|difference)\b|(?:where|in which|who)\b|is it possible to\b|is there (?:an?|any) (?:\w+ ){0,2}(?:way|list|option|metric|alert)\b"
    r"|how (?:do|can|could|would|should) (?:I|we|one) (?:make|write|set up|test|simulate|alert|monitor|detect|count|list|parse|translate)\b|(?:is|are) …,? (?:an?|the) (?:event|message|word|line|state|status|reason)s? (?:of|from|by|in)\b"
    r"|(?:is|are|does|do) …)"
)
_MINE = pattern(r"(?i)\b(?:my|our)\b")


def is_asked(line: str) -> bool:
    """Return whether the line asks about the words of an error, and nobody says that it happened to him.

    >>> is_asked('Is "0/4 nodes are available: 4 Insufficient nvidia.com/gpu." an event of the scheduler?')
    True
    >>> is_asked('What does "Insufficient nvidia.com/gpu" mean? My pod waits for an hour.')
    False
    """
    if "?" not in line:
        return False
    spoken = _spoken(line)
    return "…" in spoken and not _HAPPENED.search(spoken) and not _MINE.search(spoken) and _ASKED.search(spoken) is not None


def quoted(line: str) -> str:
    """Return the first error that the line quotes; ``""`` where it quotes none.

    >>> quoted("Our CI checks that `RuntimeError: CUDA error: no kernel image is available` is raised.")
    'RuntimeError: CUDA error: no kernel image is available'
    """
    errors = (one[0].strip("`\"'“”«»") for one in _QUOTED.finditer(line[:_LONGEST]) if _ERROR.search(one[0]))
    return next(errors, "") or (found[0] if (found := _NAMES.search(line[:_LONGEST])) is not None else "")


def is_mentioned(line: str) -> bool:
    """Return whether a sentence quotes an error, and nothing in it says that it happened: it may have, or not.

    >>> is_mentioned("The second node prints `NCCL WARN Call to connect failed` in some cases."), is_mentioned("Error: `Connection refused by n1`")
    (True, False)
    """
    spoken = _spoken(line, _SOME)
    return "…" in spoken and (bool(_CODE_OR_CELL.match(line)) or (not _HAPPENED.search(spoken) and _is_sentence(spoken)))


def _spoken(line: str, error: re.Pattern[str] = _ERROR) -> str:
    """Return what somebody says, with "…" for the errors that he quotes, and without what is only supposed; nothing of what a program prints."""
    line = line[:_LONGEST]
    is_named = any(name in line for name in _NAMED)
    if not (is_named or any(mark in line for mark in "`\"'“«")) or _PRINTS.match(line):
        return ""
    line = _NESTED.sub(r"\1", line.replace("…", "..."))
    line = _QUOTED.sub(
        lambda quoted: "…" if len(quoted[0]) >= _SHORTEST and (error.search(quoted[0]) or _NAMES.search(quoted[0])) else "that",
        line,
    )
    if is_named and _PROSE.search(_NAMES.sub("…", line)):
        line = _NAMES.sub("…", line)
    return _SUPPOSED.sub(lambda supposed: "checks " if supposed[0].endswith(" ") else "checks", line)


def _is_sentence(spoken: str) -> bool:
    return (
        len(re.findall(r"\w[\w'-]*", spoken)) >= _BESIDE and not spoken.lstrip().startswith("#") and _LABEL.match(spoken) is None
    )
