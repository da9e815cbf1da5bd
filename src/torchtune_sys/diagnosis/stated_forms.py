"""How people say that something helped, was at fault, fails, or is only asked, denied, guessed or advised: the words that stated_causes looks for around a thing."""

from __future__ import annotations

from torchtune_sys.model.patterns import pattern

SOLVED = pattern(
    r"(?i)\b(?:solve[sd]|fixe[sd]|helps|helped|resolve[sd]|cured|(?:did|does) the trick|made? (?:it|everything|all|(?:the |my )?\w[\w.-]{1,24}) (?:work|run|go|start|load|build|compile)\w*|made? .{2,60} (?:disappear|go away|vanish)|(?:fail\w*|die[sd]|crash\w*|hung|hangs|killed) otherwise|got (?:it|everything) (?:working|to work|running)|managed to (?:fix|solve|resolve|cure|get)"
    r"|could (?:then |now |finally )?be (?:installed|loaded|built|compiled|imported|started|used)"
    r"|(?:now|again) (?:it |everything |training |all |that |this )?(?:works?|runs?|passes|starts)|(?:it|that|this|everything|training|all|both|they|jobs?|scripts?|code|tests?|model) (?:all )?(?:now works?|now runs?|now passes|worked|finally \w+)"
    r"|(?:now|finally) (?:the |my |all |both )?(?:gpus?|cuda|drivers?|devices?|cards?) (?:is|are) (?:used|found|detected|seen|visible|available|recogni[sz]ed|loaded)|works? (?:\w+ )?(?:now|again|finally)|worked(?: for me| fine| well)?|runs? (?:now|again)|(?:allow(?:s|ed)|does allow|lets?) (?:me|us|it|(?:this|that|these|those|the|my|our|all) (?:\w+ )?(?:tests?|jobs?|code|programs?|scripts?|training|models?)) (?:to )?(?:train|run|use|start|load|work|build|finish)"
    r"|(?:much|way|far|lot|significantly|\d+ ?x|times|now|indeed|is|are|was|were|got|runs?) faster|doubled the speed|sped up|speeds? (?:is|are) (?:normal|fine|back)|takes? (?:\S+ ){1,5}instead of \d+|now \d[\d.]* ?(?:s|sec\w*|min\w*|hours?|it/s)|only (?:takes? )?\d[\d.]* ?(?:s|sec\w*|min\w*)(?: now)?"
    r"|(?:problem|issue|error|hang|freeze|crash|timeout)s? (?:disappear\w*|(?:is|was|were|are) gone|goes away|went away|vanishe[sd]|stopped|no longer)|no longer (?:hangs?|fails?|crash\w*|occurs?|happens?|freezes?)"
    r"|back to normal|(?:does|did|do)(?:n't| not) (?:happen|occur|appear|crash|fail|hang)\w* (?:any ?more|again)|(?:was|is) (?:the|my) (?:solution|fix|answer)|(?:works?|fix(?:es|ed)|solves?) (?:for me|(?:the|this|my) (?:problem|issue|error|hang))|seem(?:s|ed)? (?:to )?(?:fix|solve|help|work|run|do)\b|(?:get|got|gives?|see) the expected (?:results?|output|behaviou?r|bandwidth|speed))\b"
)
ANSWER = pattern(
    r"(?i)\b(?:solution|fix|remedy|answer|workaround) (?:for (?:me|us|this) |in my case |here )?was(?:(?: to)? (?:\w+ ){0,2})?\W{0,4}$"
    r"|\b(?:actual|real|final|working) (?:solution|fix|remedy|answer) ?[:：]\W{0,4}(?:\w+ ){0,3}$"
)
"""What follows is what helped, where it is told of the past."""
ANSWERED = pattern(r"(?i)\b(?:solution|fix|remedy|answer|workaround)\b")
WORKS = pattern(
    r"(?i)\b(?:(?:it|everything|training|all|both|jobs?|scripts?|code|tests?|model) (?:all |seems to )?(?:works?|runs?|ran|passe[sd]|starts?|started)|works? (?:fine|well|as expected|correctly|properly|perfectly|normally|after|once|when|with)|runs? (?:fine|well|normally)|(?:it|torch|pytorch|tensorflow|cuda|rocm|rocminfo|nvidia-smi|everything) (?:now |finally )?(?:recogni[sz]e[sd]|detect(?:s|ed)|sees|saw|finds) (?:the |my |all |both )?(?:\w+ )?(?:gpu|card|device)s?)\b"
)
BY = pattern(
    r"(?i)\b(?:with|after|when|once|by|using|setting|via|as soon as|now that|since (?:i|we)|if i|if we|i ran|export)\b.{0,30}$"
)
FAILING = pattern(
    r"(?i)hang|hung|stuck|fre+z|frozen|fail|error|time[ds]?[ -]?out|crash|\bslow|\bkill(?:s|ed)|refused|problem|\bissue|broken?\b|\blost\b|missing|prevent\w* (?:the |any )?(?:communication|connection|traffic)|(?:not|n't) (?:us(?:e|ed|ing) (?:my |the |any )?gpus?\b|work|start|come up|run\b|usable|respond|connect|see\b|find|detect|boot|load|build|compile|install|import|recogni|visible|available|support)|unusable|unable to|(?:driver|gpu|device|card)s? (?:is|are|was|were) gone|corrupt|unreachable|\bdied\b|abort|deadlock|drain|dropp(?:ed|ing)|wrong|confus|reject|denied|unavailable|unknown error|\bdown\b|offline|disappear|vanish|\bloses?\b|mismatch|cancell?ed|interrupt|stopped|stops\b|refus|evict|preempt|exceed|(?<!in)stall|\bre-?install(?:ed|ing)\b|\bidle\b|\bbad\b|ENOMEM|ENOSPC|can(?:['’]t|not)\b|out of (?:memory|(?:disk )?space)|crawl|\bfull\b|quota|strange|short (?:of )?an?\b|pending|rebooted|returns? false|bottle-?neck|\bwait(?:s|ing)? for\b|starv\w+|utili[sz]ation|jumps? between|fluctuat\w+|longer (?:than|and)|t(?:akes?|ook) (?:\w+ ){0,3}(?:long|hours|days|ages|forever)\b|(?:on|by|with) (?:the |my )?(?:cpu|processor)\b|too (?:old|new|small|low)\b|\bno (?:gpu|device|driver)s? (?:was|were|is|are|found|detected|visible|available|in|inside|under|at all)\b"
    r"|慢|瓶颈|超时|连不上|连接不上|才能|就能|就好了|恢复正常|遅(?:い|く)|느[리려림]|медленн|\blangsam|\blent\b|\blento\b|报错|错误|解决办法|怎么办|出错|失败|异常|崩溃|卡[住死]|被 ?kill|自动kill|[太过][低高旧新老]|返回 ?False|不可用|用不了|中断|退出|杀|不[足够了]|无法|不能|溢出|满了|エラー|失敗|落ち(?:る|た|ます)|でき(?:ない|ません)|不足|오류|에러|실패|멈[추춤]|부족|종료|ошибк|не (?:работает|могу|запускается|хватает|использует)|пада(?:ет|ют)|вылета|завис|нехват|Fehler|nicht|schlägt fehl|stürzt|erreur|échou|plante\b|insuffisant|\bfalla\b|insuficiente|lleno"
)
"""A remedy with which something works says little where nothing failed."""
BLAMED = pattern(
    r"(?i)\b(?:root cause(?:d|s)?\b|in the end (?:it|this|that) was\b|turn(?:s|ed) out\b|(?:the |my |our |actual |real |main |underlying |^)(?:problem|issue|cause|culprit|reason|error|failure|bug|catch|trick)s? (?:here |for me |in my case |for us )?(?:was|were|is|are)\b"
    r"|caused by\b|because(?: of)?\b|(?:due|owing) to\b|(?:traced|tracked|narrowed|comes?|came|boil(?:s|ed)) (?:it |this |back |down )*(?:to|from)\b|result of\b|stem(?:s|med) from\b|(?:found|figured|discovered)(?: out)? (?:that |out )?(?:the|a|one|it|some|two|our|my)\b"
    r"|reason\W{1,3}(?=\w)|cause\W{1,3}(?=\w))"
)
IS_THE_CAUSE = pattern(
    r"(?i)\b(?:(?:was|were|is|are|being) the (?:\w+ )?(?:problem|cause|culprit|issue|reason)|caus(?:ed|es|ing) (?:this|it|the|all|my|our|these)|led to (?:this|it|the))\b"
)
NEGATED = pattern(
    r"(?i)n't(?! (?:(?:happen|occur|appear|crash|fail|hang)\w* (?:any ?more|again)|(?:know|understand|see|get) (?:why|how)))\b|\b(?:not(?! (?:(?:happen|occur|appear|crash|fail|hang)\w* (?:any ?more|again)|(?:know|understand|sure|see|get|clear) (?:why|how)))|never|neither|nor|cannot|nothing|without(?! (?:the |any |an? )?(?:crash|error|problem|issue|hang)\w*))\b|\bno (?!longer|more\b|further|problem|issue|error|space left)|不是|并非|没有(?=\S{0,3}(?:不足|不够))|ではな|아니|не из-за|\bkein\b|(?<![\d.,:/])(?<!gpu )(?<!node )(?<!rank )(?<!worker )(?<!device )(?<!card )(?<!core )\b(?:0|zero) {0,2}…|…\W{1,5}false\b"
)
MADE_UP_FOR = pattern(
    r"(?i)\b(?:after|once|with|by|doing|having done) (?:i |we )?(?:doing |did |done )?(?:this|that|it|so)\b(.{0,60})"
)
"""What had not been done was done: a "not" before it tells of the time before."""
HEDGED = pattern(
    r"(?i)\b(?:can(?![\'’]t| (?:now|again|finally|confirm)\b)|already|(?<!even )if|whether|should|would(?! not|n't| (?:eventually|then|always|just|simply|hang|fail|crash|freeze|time ?out|get stuck)\b)|may|might|could(?! not|n't| (?:then |now |finally )?be (?:installed|loaded|built|compiled|imported|started|used)\b)|does(?! not| (?:allow|work|fix|solve|help)\b)|unless|only hides|usually|typically|often|probably|perhaps|maybe"
    r"|possibly|suspect\w*|thought|assumed|believed|guess\w*|in (?:many|most|some) cases|e\.g|PR|pull request|patch|commit|merge|supports|support (?:for|is|was)|users? (?:can|may|should|who|often|report)|previously(?! \W?\d)|(?:the|this|user|our) manual|mock\w*|we show|guides?|docs?|documentation|tutorial|read ?me|FAQ|simulat\w*|on purpose|by design|as (?:designed|expected|intended|planned)|for example|we support|exporter|dashboard|describes?|defines?|recommends?|how do i|needed|feature request|enhancement)\b|(?<!seems )(?<!seem )(?<!seemed )(?<!managed )\bto (?:fix|solve|resolve|avoid|prevent)\b|[?？]\s*$"
    r"|可能|避免|防止|修复|支持|新增|添加|优化|解决了?[^,，。]{0,12}问题|(?:の|する|した)場合|ときは|是不是|是否|会不会|吗|如果|应该|大概|也许|怀疑|かもしれ|(?:です|でしょう|ます)か|(?:인가|일까|을까|나)요|(?<=… )(?:하면|할)|може(?:т|те) быть|наверн|возможно|\bvielleicht\b|\bpeut-être\b|\bquizás?\b|\bwenn\b|\bsi\b"
)
OWN_TRIAL = pattern(r"(?i)\b(?:if|when|once) (?:i|we)\b(?! (?:am|are|want|need|should|could|would|can|may|might))")
"""Somebody tells what happens where he does it."""
NOTICED = pattern(r"(?i)\b(?:i|we) (?:just |also |then )?(?:noticed|found(?: out)?|saw|see|reali[sz]ed|discovered|checked)\b")
"""What somebody saw is told, even with a question mark."""
BLAME = pattern(r"(?i)\b(?:because(?: of)?|due to|owing to|caused by|as a result of)\b")
OPEN = pattern(
    r"(?i)^\W*(?:if|when|whenever|in case|should|how|why|what)\b"
    r"|\b(?:(?:I|we)(?:'m| am|'re| are)? (?:just |only )?(?:guess|suspect|think|believe|assume|suppose)(?:ing)?|my (?:guess|suspicion) is)\b"
    r"|(?:\bnot|n't|\bnever|\bmay|\bmight|\bcould|\bcan|\bprobably|\bmaybe|\bperhaps|\bpossibly|\blikely|\busually|\boften|\bsometimes|\bwhether|\bsuspect|\bthought|\bthink)"
    r"(?: (?:be|been|is|it|it's|was|that|simply|just|only|necessarily|also|have))*\s*$"
    r"|\b(?:may|might|could|can|would) (?:also |then |sometimes |easily )?(?:fail|crash|hang|break|freeze|stall|die|stop|time out|get stuck|be (?:slow|killed|stuck))(?: to \w+)?\s*$"
    r"|\b(?:is|are) (?:needed|required|recommended|necessary)\s*$"
    r"|\b(?:PR|pull request|patch|commit|merge|supports?|manual|guides?|docs?|documentation|tutorial|read ?me|tests?|simulat\w*|on purpose|for example|exporter|dashboard|handl\w+|errors? (?:out|like)|messages?|show\w*|report\w*|describes?|defines?|explains?)\b"
)
"""Before the word of blame: it is asked, denied, guessed, or a program's. (What fails may well be told with a "not": it does not start because …)"""
ONCE_MORE = pattern(
    r"(?i)^(?:(?:and |then |after that,? )?(?:now|that|this|it|everything|all|problem|issue|works?|worked|fixed|solved|resolved)\b|(?:the |my )?(?:solution|fix|remedy|answer) (?:is|was)\b)"
)
ANNOUNCES = pattern(r"(?i)(?:\w ?:|\b(?:add|added|adding|set|setting|run|running|with|using|use|by|was|is))\s*$")
"""What is told stands in the line below, as often before a block of code."""
COMMAND = pattern(r"\W{0,8}(?:export |sudo |docker |modprobe |ip |mpirun |nvidia-smi |echo |sysctl |--[a-z]|[A-Z_]{6,}=)")
CLAUSES = pattern(
    r"(?<=[.!?;。])\s+|(?<=\))\s{2,}|,? \b(?:but|however|although|though|except|whereas|while)\b |, so (?=I (?:wonder|want|would|was)\b|(?:can|could|is|are|how|what|do|does) )"
)
NAMED = pattern(
    r"(?i)(?:^|[.,;:] )\W{0,3}(?:it|that|this|which|problem|issue|culprit|cause) (?:was|turned out to be) (?:just |simply |indeed |actually )?(?:the |my |our |a )?$"
)
"""Before the whole of what was at fault: it was the firewall."""
IS_ALL = pattern(r"(?i)\W*(?:$|(?:of|from|that|which|on|in)\b)")
ISSUE = pattern(r"(?i)^\W{0,3}(?:\w+ )?(?:issue|problem|fault|failure|trouble|misconfiguration|setting)s?\b")
IT_WAS = pattern(
    r"(?i)\b(?:it|this|that|which|problem|issue) (?:was|is|turned out to be|ended up being|seems? to be|looks? like)\b|\bit's\b"
)
UNSURE = pattern(
    r"(?i)\b(?:will|must|need(?:s|ed)? to|have to|want(?:s|ed)?|make sure|ensur\w+|check\w*|verif\w+|detect\w*|handl\w+|warn\w*|report(?:s|ed|ing)?|recommend\w*|suggest\w*|requir\w+|feature|supports|implement\w*"
    r"|test(?:s|ing)|avoid\w*|prevents?|robust\w*|monitor\w*|alert\w*|simulat\w*|option|add(?:s|ed|ing)?|allow\w*|when|whenever|once|until|before|for example|e\.g|any|no|like|seems? fine|instead of|(?:and|but) (?:it|i|we|this|that|still))\b"
)
"""Beside a fault that is merely told: nobody says that it is so here and now."""
ADVISES = pattern(
    r"(?i)^\W*(?:(?:we|i) (?:plan|intend|propose|would like|want)\b|(?:check|make|ensure|verify|try|add|allow|support|handle|detect|document|improve|implement|use|please|consider|see|note|fix|update|set|run|create|remove|avoid|test|this|these|how|what|why|is|are|do|does|can|has|have|did|was|could)\b)|\?\W*$"
)
WISHED = pattern(
    r"(?im)^labels?: (?!.*\b(?:bugs?|crash|regression|defect)\b)(?:.{1,200}, )?(?:\[?(?:enhancement|feature(?:[ -]requests?)?|proposal|documentation|docs)\]?|(?:kind|type)[/: ]{1,2}(?:feature|enhancement|documentation))(?:,|$)"
)
"""A tracker's label: nothing happened, something is wished for."""
FIRST_PERSON = pattern(
    r"(?i)(?<![\w/.])(?:I|I'm|I've|we|we're|we've|my|our|us|me|hi|hello|thanks|anyone)(?![\w/.])|[\u4e00-\u9fff]{4}|[\u3040-\u30ff]{3}|[\uac00-\ud7af]{2}|[\u0400-\u04ff]{4}|(?<!\w)(?:ich|wir|mein\w*|nous|notre|nosotros)(?!\w)"
)
PARTS = pattern(r"[,;:()]|\b(?:since|(?<!not )because|so|and|as|which|that)\b")
"""Between them a "not" or a "when" reaches no further."""
WELL_UNTIL = pattern(
    r"(?i)(?:\b(?:did(?:n't| not)|never|had no|no|without)\b.{0,40}\b(?:problem|issue|error|trouble|fail\w*)s?\b|(?<!not )(?<!n't )(?<!never )\b(?:work(?:s|ed|ing)?|ran|running|fine|well|good|okay|ok)\b).{0,24}\buntil\b"
)
"""What follows began the fault, and is no remedy."""
SUCCEEDS = pattern(
    r"(?i)^\W*(?:(?:and|so|then|now|after (?:that|this|which)|afterwards|with (?:this|that)|that|this|which|it|finally|(?:after )?(?:a )?re-?(?:boot|start)(?:ed|ing)?),? ){0,4}"
    r"(?:(?:everything|training|it|the (?:training|script|job|error|problem|issue|program|code)|all|they) )?(?:has |have |is |was |are )?(?:just |really |finally |now |all )?(?:solve[sd]?|fix(?:e[sd])?|resolve[sd]|help(?:s|ed)|work(?:s|ed)|gone|allow(?:s|ed)|let(?:s|ting)? (?:me|us)|did (?:the trick|it)|does (?:the trick|it)|start(?:s|ed)|runs?|trains?)\b(?! (?:on another|elsewhere|if|but)\b)"
)
"""A line that says that what stands above it helped."""
UNTIL = pattern(r"(?i)\buntil (?:i|we)\b.{0,20}$")
CODE = pattern(
    r"\w\[\d+\]:|^\W*\w+_\w+: |(?i:exit code)|(?<=\w )error:|\.\w{1,4}:\d|::|\w\(\)|[{}|]|==|^\W*(?:ERROR|WARN\w*|INFO|DEBUG)\b|^\w:? \S+/|^\W*\w+(?:\s?\(\w+\))?: ?\S*[/\d]|\s-\S+="
)
"""What a program printed, or a table."""
PRINTED = pattern(
    r"^\W*(?:(?:ERROR|WARN(?:ING)?|INFO|DEBUG|CRITICAL)\W{1,3}\d\d-\d\d |\w+_\w+: |[A-Za-z][\w ./-]{1,40} ?[:=] ?v?\d+(?:\.\w+)+(?:\+\w+)?$|[A-Z][\w ./-]{2,40} ?: ?(?:No CUDA|N/A|Could not collect|True|False|None)\s*$)"
    r"|\.\w{1,4}:\d+\]|\S {3,}\S+ {3,}\S|\[\d{1,3}\] (?:\S{1,80} )?NCCL WARN |NCCL INFO (?:\w+ set by environment to \^|.{0,400}\[1\]\w)"
)
"""A line of a log with its level or its place, a version of an inventory, columns: nobody says it."""
SOURCE = pattern(
    r"\\\s*$|^\s*(?:await |return |else |if .{1,80}: )?[\w.]{2,60}\((?:[fFrRbB]{0,2}[\"']|[\w., ]{1,60}, ?[fFrRbB]{0,2}[\"'])|^\s*(?:#\s?define|#\s?include|import|from \w\S* import|def|class|elif|RUN|ENV|COPY|CMD) \S|^\s*echo (?:-e )?[\"']|;\s*$"
)
"""A line of a program, a script or a Dockerfile: what it holds is not said, and did not happen yet."""
STATEMENT = pattern(
    r"\s*(?:[\w.]{0,40}log(?:ger|ging)?\.\w{3,12}|print|f?printf|warnings\.warn|throw \S{3,40}|std::cerr <<) ?\(?(?:stderr, ?)?[fFrRbB]?[\"']"
    r"|\s*(?:(?:el)?if (?:not )?[fFrRbB]?[\"'][^\"']{1,300}[\"'] (?:not )?in \w|with [\w.]{3,60}\([^\"']{0,80}[\"'][^\"']{1,300}[\"'][^\"']{0,20}\)(?: as \w+)?:(?:\s*$| ?\w[\w.]*\()|assert [^\"']{0,80}[\"'][^\"']{1,300}[\"'])"
    r"|\s*(?:(?:el)?if|while|until) (?:! )?(?:grep|test|\[\[?) .{1,300}|\s*echo (?:-e )?[\"']|\s*[A-Z][A-Z0-9_]{3,40}: ?[\"'][^\"']{1,300}[\"'],\s*$"
    r"|\s*(?:case .{1,40}: ?)?return [fFrRbB]?([\"']).{1,300}\1;?$|\s*msg(?:id|str)(?:_plural|\[\d\])? [\"']"
    r"|\s*(?:(?:async )?with |await |return |\w{1,40} ?= ?)?\.?(?:(?:\w{1,40}\.){1,6}(?!\w*(?:Error|Exception|Warning)\()[A-Za-z_]|[a-z_])\w{0,60}\((?:(?!\): )[^\n]){0,300}[\"'](?:(?!\): )[^\n]){1,400}\)(?: as \w{1,40})?[:;,]?$"
    r"|\s*(?:\S{0,60}[$#%>] )?(?:sudo )?(?:[a-z][\w ./-]{0,80}\| ?)?(?:git |[efz])?(?:grep|rg|ack) (?:-[\w=-]{1,20} ){0,6}[\"'`]"
    r"|\s*(?:\}? ?else )?(?:el)?if\b.{1,120} ?[!=]= ?(?:[\w.]{1,40}(?:\.|::))?\w*(?:ERROR|Error)\w*\)?(?: .{0,120})?(?:[:{;]|\) ?return .{0,80}|\))\s*$"
    r"|\s*(?:case|except) \(?[\w.:, ]*(?:ERROR|Error)\w*\)?(?: as \w+)?:(?:$| ?(?:return|pass|break|raise)\b)|\s*(?:#define (?=\w*ERROR)\w+ |(?=\w*(?:ERROR|Error))[A-Za-z]\w{3,60} ?= ?)\(?-?(?:0x)?\d{1,5}\b"
    r"|\s*(?:assert[A-Z_]\w{2,20}|expect|mock\w*(?:\.\w{2,30})?) ?\([^\n]{0,200}[\"']|\s*(?:x?it|test|describe) ?\([\"']"
    r"|\s*\(([\"'])[^\"']{1,300}\2, ?(?:[\"'][^\"']{0,200}[\"']|[A-Za-z_][\w.]{0,80})(?:, ?[\"'\w.]{1,200}){0,4}\),?$"
    r"|\s*(?:\d{1,4}|[A-Z][A-Z0-9_]{2,40}|[\"'](?:\d{1,4}|[A-Z][A-Z0-9_]{2,40})[\"']) ?(?::|=>) ?[(\[{][\"'][^\"']{1,60}[\"'], ?[\"'][^\"']{1,300}[\"'][)\]}],?$"
)
"""A statement of a program or a script that holds an error's text: it prints it, looks for it, returns it or lists it. What ``SOURCE`` is to words that somebody says, this is to messages."""
PROSE = pattern(
    r"^[#>*\-\s\d.)(\[]*(?:@[\w-]{1,40}[,:]? )?[A-Za-z`'\"\u0400-\u04ff\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af].*"
    r"(?:[a-z]{2,}\W+(?:\S+ )?[a-z]{2,}|[\u3040-\u30ff\u4e00-\u9fff]{4}|[\uac00-\ud7af]{2}\W+(?:\S+ )?[\uac00-\ud7af]{2}|[\u0400-\u04ff]{2,}\W+(?:\S+ )?[\u0400-\u04ff]{2,})|'s password: ?\S+@"
)
