"""Forms in which secrets stand that few texts hold: options of programs, parameters of URLs, headers of proxies, encoded text, and values on a line of their own."""

from __future__ import annotations

import itertools
import re
import unicodedata

from torchtune_sys.host.secrets.next_line import without_words_below
from torchtune_sys.host.secrets.values import HIDDEN, hide_value
from torchtune_sys.host.secrets.words import BEFORE_KEY, IN_ESCAPED_QUOTES, IN_NAMES, IN_QUOTES, NAMES, QUOTE, VALUE
from torchtune_sys.model.patterns import pattern

_NAMED = rf"[\w.-]{{0,64}}(?:{NAMES})[\w.-]{{0,64}}"
_BEGINNING = r"(?:^|(?<=[\]:|>)-][ \t])|(?<=[\w\]>]:)|(?<=\d\t)|(?<=\dZ[ ])|(?<=[ ][FP][ ]))"
"""Of a line, or behind what may be a prefix of it."""
_SAME_COMMAND = r"[^\n|;&]{0,200}?[ \t][\"']?"
"""Also as a list of words in quotation marks, as strace, Python and Ansible show a command."""
_OPTIONS = pattern(
    r"\b((?:"
    rf"login{_SAME_COMMAND}-p(?![ \t]{{1,4}}[0-9]{{1,5}}\b)|(?:cqlsh|twine){_SAME_COMMAND}-p|(?:(?:un)?zip|mosquitto_\w{{3}}){_SAME_COMMAND}-P|7z[ar]?{_SAME_COMMAND}-p(?=\S)"
    rf"|lftp{_SAME_COMMAND}-u[ \t]{{0,4}}[^\s,]{{1,64}},|ipmi\w{{0,16}}{_SAME_COMMAND}-P|(?:racadm|redfish\w{{0,8}}|mongo\w{{0,8}}){_SAME_COMMAND}-p"
    rf"|redis-cli{_SAME_COMMAND}-a|(?:ldap|ipa)[\w-]{{0,20}}{_SAME_COMMAND}-w|(?:mysql|mariadb)[\w-]{{0,16}}{_SAME_COMMAND}-p(?=\S)|snmp\w{{0,16}}{_SAME_COMMAND}-c"
    rf"|curl{_SAME_COMMAND}(?:-b|--cookie)|ssh-keygen{_SAME_COMMAND}-[NP]|openssl{_SAME_COMMAND}-k|openssl{_SAME_COMMAND}-pass(?:in|out)?[ \t]{{1,4}}pass:"
    rf"|kdb5_util{_SAME_COMMAND}-[Pw]|[xw]?freerdp{_SAME_COMMAND}/p:"
    rf")(?:[\"'],)?[ \t=]{{0,4}})({VALUE})"
)
"""Of programs whose options for a password have one letter: their manual pages."""
_ARGUMENTS = pattern(
    r"\b((?:(?:(?:ht|mosquitto_)passwd[ \t]+-\w{0,6}b\w{0,6}[ \t]+\S{1,200}|add_user|change_password|http-basic\.\S{1,64})[ \t]+\S{1,64}"
    r"|ngrok[ \t][^\n|;&]{0,60}?authtoken|from-literal[ \t=\"']{1,4}[\w.-]{1,64}="
    r"|[Cc]onvert[Tt]o-[Ss]ecure[Ss]tring[ \t]+(?:-[Ss]tring[ \t]+)?(?!-)"
    r"|mc[ \t]+(?:alias[ \t]+set|config[ \t]+host[ \t]+add)(?:[ \t]+\S{1,200}){3}|weka[ \t]+user[ \t]+(?:login|passwd)[ \t]+[^\s-]\S{0,64}[ \t]+(?!-)"
    r"|lep[ \t]+login[ \t]+(?:-c|--credentials)[ \t]+[^\s:]{1,64}:"
    rf"|(?:smbclient|smbget|rpcclient|net[ \t]+(?:ads|rpc)|[\w.]{{0,12}}cifs){_SAME_COMMAND}(?:\S{{0,200}},)?(?:-U|--user|user(?:name)?)[ \t=]{{0,4}}[^\s%]{{1,64}}%"
    r"|smbclient[ \t]+[/\\]{2,4}\S{1,200}[ \t]+(?!-)"
    rf"|curlftpfs{_SAME_COMMAND}(?:\S{{0,200}}[,(])?user=[^\s:,]{{1,64}}:"
    rf"|(?:(?:config|configure)[ \t]+(?:set|--global)[ \t]+|config[ \t]+create{_SAME_COMMAND}|conf[ \t]{{1,4}}|nmcli{_SAME_COMMAND}){_NAMED}"
    rf")[ \t=]{{0,4}})({VALUE})"
)
"""Of programs that take a password as it stands."""
_SQL = pattern(
    r"(?i)(\bidentified[ \t]+(?:with[ \t]+\S{1,64}[ \t]+)?(?:by|as)[ \t]+(?:password[ \t]+)?(?=\\{0,3}[\"']|[^\s;]{4,200}[ \t]{0,4}(?:;|$))|\bpassword(?:[ \t]{1,4}|[ \t]{0,4}\([ \t]{0,4})(?=\\{0,3}[\"']))"
    rf"({VALUE})"
)
"""Users of MySQL, Oracle, PostgreSQL."""
_WORDED_KEY = pattern(
    rf"(?i)(\b(?:{'|'.join(BEFORE_KEY)})[ ]key(?:[ ][0-9]{{1,2}})?[ \t]{{0,8}}[:=][ \t]{{0,8}})([0-9a-f]{{32,}}|[a-z0-9+/]{{22,}}={{0,2}})(?=[\s\"',;]|$)"
)
"""``shared key: 9b2f…``: in words, where it could be anybody's sentence, but for what follows."""
_PIPED = pattern(
    rf"\b((?:echo|printf)[ \t]+(?:-\w+[ \t]+|['\"]?%s(?:\\n)?['\"]?[ \t]+){{0,2}})({VALUE})"
    r"(?=[ \t]{0,8}\|[ \t]{0,8}(?:sudo[ \t]+-S|cryptsetup|chpasswd|kinit|passwd\b|(?:realm|adcli|smbpasswd|vncpasswd)\b|[^\n|]{1,200}?-stdin\b|sudo[ \t]+chpasswd))"
)
_LOGGED_IN = pattern(
    r"((?:wandb|vault|pulumi|cargo|hf|huggingface-cli|ngc|comet|src)[ \t]+login[ \t]+(?:--\w[\w-]{0,30}[ \t]+){0,4})(?=\S{0,200}?(?:[0-9]|[A-Z]\S))([\w.~+/=-]{8,4096})"
    r"|(login\([ \t]{0,4}(?:(?:key|token|api_key)[ \t]{0,4}=[ \t]{0,4})?)(\\{0,4}\"[^\"\n]{4,4096}\"|\\{0,4}'[^'\n]{4,4096}')"
)
"""What is given to a program, or to a function of Python's, to log in with. Behind ``wandb login`` in a sentence stands no word with a digit."""
_HERE_STRING = pattern(rf"((?:login|-stdin|token|crypt|passw|sudo)[^\n|;&]{{0,200}}?<<<[ \t]{{0,4}})({VALUE})")
_SET = pattern(
    rf"(?i)((?:\bsetenv|\bset[ \t]+-[gux]{{1,3}}|{_BEGINNING}(?:[ \t]*|#[0-9]+ [^\n]{{0,40}}?)(?:ENV|ARG))[ \t]+{_NAMED}[ \t]+)(?!(?:is|was|not)\b)({VALUE})"
)
"""Shells other than POSIX's, and the Dockerfile as its builder shows it."""
_ASKED_FOR = pattern(
    rf"(?i)(\bpass(?:word|phrase|code) for (?:user |key )?(?:[^\s:]|:(?=/)){{1,100}}:[ \t]{{1,4}})({VALUE})(?=[ \t]{{0,8}}(?:$|\\?[\"']))"
)
_TOLD = pattern(
    r"(?i)(\b(?:password|passphrase|passcode|(?:api|access|private|secret)[ _-]key|(?:access|auth|api|bearer|refresh|login|session)[ _-]token)"
    r"[ \t]{1,4}(?:is|was|(?:(?:is|was|has been)[ \t]{1,4})?(?:set|changed|reset)[ \t]{1,4}to)(?::[ \t]{1,4}|[ \t]{1,4}(?=[\"'`])))"
    rf"({VALUE})"
)
"""In a sentence, behind a colon or in quotes: any other word could be one of the sentence's; other tokens are a model's."""
_TIGHT = pattern(
    r"(?i)((?<![\w./-])(?:pw=|pw:[ \t]{1,4}(?=\S{5,4096}[ \t]{0,8}$)|(?:password|passwd|passphrase|pwd|pw|secret|(?:\w{1,20}[_-])?token|api[_-]?key|access[_-]?key):))(?![0-9]+\b|[:/])([^\s\"',;&:]{5,4096})"
)
_DIRECTIVE = pattern(
    rf"(?i){_BEGINNING}"
    r"([ \t]{0,40}(?:[^\s:=]{1,40}[ \t]{1,8}){0,3}?(?:(?:[\w.-]{1,40}(?:passw(?:or)?d|passphrase)|(?:[\w.-]{0,40}[_.-]|bind|root|admin|user|db)(?:pw|pass)"
    r"|[\w.-]{0,40}[_.-](?:secret|psk))(?:[ \t]{1,4}--\w[\w-]{0,30}){0,4}"
    r"|(?:neighbor|user(?:name)?)[ \t]{1,4}\S{1,64}[ \t]{1,4}password|stats[ \t]+auth[ \t]+[^\s:]{1,64}:(?=\S)|password[ \t]+password"
    r"|r[ow]community6?|com2sec6?(?:[ \t]+\S{1,64}){2}|createuser[ \t]+(?:-e[ \t]+\S{1,80}[ \t]+)?\S{1,64}[ \t]+(?:sha|md5)[\w-]{0,6}"
    r"|message-digest-key[ \t]+[0-9]{1,5}[ \t]+md5(?:[ \t]+[0-9])?"
    r")(?:[ \t]{1,8}|(?<=:)))(?!is\b|was\b|for\b|[=:]|not\b|-)([^\s\"',;&=]{4,1024})(?=[ \t]{0,8}$|[ \t]+(?:aes|des|[0-9./]{3,20})(?:[ \t]|$))"
)
"""A name and a value with a blank between them, in files of settings and on consoles of switches: two words, where more could be a sentence."""
_BESIDE = pattern(
    r"(?i)((?:\buser(?:name)?\\{0,3}\"[ \t]{0,4}:[ \t]{0,4}\\{0,3}\"[^\"\\\n]{1,64}\\{0,3}\",\s{0,4}\\{0,3}\"key\\{0,3}\"[ \t]{0,4}:[ \t]{0,4}"
    r"|\bsend[ \t]+(?=\"[^\"\n]{1,200}(?:\\r|\Z))|:[ \t]{1,4}psk[ \t]{1,4}(?=\")|\bcreateuser[ \t]+(?:-e[ \t]+\S{1,80}[ \t]+)?\S{1,64}[ \t]+(?:sha|md5)[\w-]{0,6}[ \t]+(?=\")"
    rf"|{_BEGINNING}[ \t]*\"?[\w.-]{{1,64}}\"?[ \t]+\*[ \t]+(?=\")))({VALUE})"
)
"""Of Kaggle, of expect, of IPsec, of PPP."""
_LOGIN_BESIDE = pattern(
    r"(?i)((?:\b(?:https?|xh)[ \t](?:[^\n|;&]{0,200}?[ \t])??(?:-a|--auth)|\betcdctl[ \t](?:[^\n|;&]{0,200}?[ \t])??--user|[ \t]-auth)[ \t=]{1,4}[^\s:/]{1,64}:"
    r"|\b(?:thin:|sqlplus[ \t]+(?:-\w[ \t]+)?)[^\s/:@]{1,64}/(?=[^\s/@]{1,200}@))([^\s@\"',;]{3,400})"
)
"""A name and a password behind an option of its own, or in the address of a database."""
_CHANGED_TO = pattern(r"(?m)^([ \t]+[\w.-]{1,64}:)[^\n]{1,400}$")
_CHANGED = pattern(r"(?m)(\bchpasswd:[ \t]*\n[^\n]{0,200}\|[-+]?[ \t]*\n)((?:[ \t]+[\w.-]{1,64}:[^\n]{1,400}(?:\n|\Z)){1,200})")
"""Of cloud-init."""
_TO_THE_END = pattern(
    rf"(?i){_BEGINNING}"
    r"([ \t]*(?:[\w.-]{1,40}[_.-])?(?:password|passphrase)[ \t]{0,8}(?:=|:(?=[ \t]))[ \t]{0,8})((?![\"'|>{\[!&*$])[^\s#]{1,200}(?:[ \t]+(?!#)[^\s]{1,200}){1,20})[ \t]*$"
)
"""A passphrase of several words, in a file of settings."""
_COMMENT = pattern(
    rf"(?i)((?<![a-z0-9])(?:admin|system)?comment=)(?=[^\n\"\\]{{0,400}}?(?:{NAMES}|\bkey\b|\bpw\b))([^\n\"\\]{{1,4096}}?)(?=[ \t]{{1,8}}[a-z][\w:/]{{1,40}}=|[\"\\]|$)"
)
"""Of a job, as ``scontrol`` shows it: what a person typed."""
_PROPERTY = pattern(
    rf"(?i){_BEGINNING}([ \t]{{0,16}}(?:[\w-]{{1,40}}\.){{1,12}}(?:{NAMES})[\w-]{{0,20}}[ \t]{{1,40}})([^\s=:]\S{{3,4096}})(?=[ \t]{{0,8}}$)"
)
"""``spark.authenticate.secret x``: a name and a value in a file of properties."""
_LOGIN_IN_CODE = pattern(r"(?i)(%2f%2f)([^\s%]{1,64}%3a[^\s\"'<>&]{1,400}?)(?=%40)")
_ACCOUNT = pattern(r"(\bmachine\s+\S{1,200}\s+login\s+\S{1,200}\s+account\s+)(\S{1,400})")
_PARAMETERS = pattern(r"(?i)([?&;](?:key|code|signature)=)(?![0-9]{1,5}\b)([^\s\"'&<>\\]{1,4096})")
_HEADER_WITH_PARAMETERS = pattern(
    rf"(?i)(authorization(?:{QUOTE})?[ \t]{{0,4}}[:,][ \t]{{0,4}}b?(?:{QUOTE})?(?:digest|aws4-[\w-]{{1,20}})[ \t]{{1,4}})([^\n]{{1,4096}})"
)
_COOKIES = pattern(r"(?i)(\b(?:set-)?cookie:[ \t]{0,4})([^\n\"']{1,4096})")
_PROCTITLE = pattern(r"(\bproctitle=)([0-9A-F]{16,})")
"""A command in hexadecimal, as audit writes one with blanks."""
_OF_WANDB = pattern(r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])")
_TUPLE = pattern(
    rf"(?i)(\(b?{QUOTE}{_NAMED}{QUOTE},[ \t]{{0,8}})(?!b?{QUOTE}[^'\"]{{0,5}}['\"])"
    rf"(b?(?:{IN_QUOTES}|{IN_ESCAPED_QUOTES}|\\{{1,3}}'[^'\n]{{1,4096}}(?:'|\Z)))"
)
_ELEMENT = pattern(rf"(?i)(<(?:\w{{1,64}}:)?{_NAMED}(?:[ \t][^<>\n]{{0,200}})?>)([^<>\s][^<>\n]{{0,4096}})(?=</)")
_OF_A_PAGE = pattern(
    rf"(?i)(<\w{{1,20}}[ \t](?:[^<>\n]{{0,300}}?[ \t])??[\w-]{{1,20}}={QUOTE}{_NAMED}{QUOTE}(?:[^<>\n]{{0,300}}?[ \t](?:value|content)=))({VALUE})"
    rf"|(<\w{{1,20}}[ \t](?:[^<>\n]{{0,300}}?[ \t])??[\w-]{{1,20}}={QUOTE}{_NAMED}{QUOTE}[^<>\n]{{0,300}}>)([^<>\s][^<>\n]{{0,4096}})(?=</)"
)
"""``<input type="password" value="x">``, ``<entry key="db.password">x</entry>``."""
_MARKED = pattern(
    rf"(?i)((?:\*\*|__|`){_NAMED}:?(?:\*\*|__|`)(?:[ \t]{{0,4}}[:=][ \t]{{0,4}}`?|(?<=:\*\*)[ \t]{{1,4}}`?|[ \t]{{1,4}}(?:is|to|as|was)[ \t]{{1,4}}`))([^\s`]{{4,4096}})"
    rf"|(\|[ \t]{{0,40}}`?{_NAMED}`?[ \t]{{0,40}}\|[ \t]{{0,40}}`?)([^\s`|]{{6,4096}})(?=`?[ \t]{{0,40}}\|)"
)
"""Of Markdown."""
_COLUMNS = pattern(rf"(?i)(?<![\w.-])({_NAMED}[ \t]{{0,40}}(?:\||\t)[ \t]{{0,40}})([^\s|]{{6,4096}})[ \t]{{0,8}}\Z")
"""A line of a table without borders: a name, a bar or a tab, a value."""
_ENCODED_QUOTE = r"(?:%22|%27|&quot;|&#0?3[49];)"
_ENCODED = pattern(
    rf"(?i)((?:{NAMES}|(?<=%[0-9a-f]{{2}})(?:pass|pwd|pw|sig|auth)(?![a-z]))[\w.-]{{0,64}}{_ENCODED_QUOTE}?(?:%(?:25){{0,2}}3[ad]|[:=])(?:%20|\+|[ ])?{_ENCODED_QUOTE}?)([^\s\"'<>&%,;]{{1,4096}})"
)
_NAME_AND_VALUE = pattern(
    rf"(?i)(\b(?:name|key)(?:{QUOTE})?[ \t]{{0,8}}[:=][ \t]{{0,8}}(?:{QUOTE})?{_NAMED}(?:{QUOTE})?,?(?:\\n|\s){{0,80}}(?:{QUOTE})?value(?:{QUOTE})?[ \t]{{0,8}}[:=][ \t]{{0,8}})({VALUE})"
)
_VALUE_AND_NAME = pattern(
    rf"(?i)((?<=[\s,\"'])value(?:{QUOTE})?[ \t]{{0,8}}[:=][ \t]{{0,8}})({VALUE})(?=,?(?:\\n|\s){{0,80}}(?:{QUOTE})?(?:name|key)(?:{QUOTE})?[ \t]{{0,8}}[:=][ \t]{{0,8}}(?:{QUOTE})?{_NAMED})"
)
_VALUE_GIVEN = pattern(r"value\S{0,4}[ \t]{0,8}[:=]")
"""What must be there for that, and costs a tenth of it to compile."""
_NAMED_OPTION = rf"(?=-)[\w.-]{{0,42}}(?:{NAMES})[\w.-]{{0,20}}"
_ITEM_BEHIND = pattern(
    rf"(?i)({QUOTE}{_NAMED_OPTION}{QUOTE},(?:\\n|\s){{0,80}})(?!{QUOTE}-)({IN_QUOTES}|{IN_ESCAPED_QUOTES}|\\{{1,3}}'[^'\n]{{1,4096}}(?:'|\Z))"
    rf"|(-[ \t]{{1,8}}(?:{QUOTE})?{_NAMED_OPTION}(?:{QUOTE})?[ \t\r]{{0,8}}\n[ \t]{{0,64}}-[ \t]{{1,8}})(?!(?:{QUOTE})?-)({VALUE})"
)
"""An option and its value, each an item of a list: arguments of a container, and of a process as Python shows them."""
_BEFORE_AN_ITEM = ('"-', "'-")
_NEXT_ITEM = ("\n-", "\n ", "\n\t")
"""Without one, ``- --password`` is no item of a list with another below it: the kernel's command line has such, and is one line."""
_BLOCK = pattern(
    rf"(?im)^([ \t]{{0,64}})((?:-[ \t])?[\"']?{_NAMED}[\"']?[ \t]{{0,8}}:[ \t]{{1,8}}[|>][0-9+-]{{0,2}}[ \t]{{0,8}}\n)((?:\1[ \t]+[^\n]*(?:\n|\Z)){{1,200}})"
)
_LIST = pattern(rf"(?i)((?:{NAMES})[\w.-]{{0,64}}(?:{QUOTE})?[ \t]{{0,8}}[:=][ \t]{{0,8}}\[)([^\[\]{{}}]{{1,4096}})(?=\])")
_PART_OF_A_FORM = pattern(
    rf"(?i)(\bname={QUOTE}{_NAMED}{QUOTE}[^\n]{{0,100}}\n(?:[\w-]{{1,40}}:[^\n]{{0,200}}\n){{0,4}}\r?\n)([^\r\n]{{1,4096}})"
)
"""As a browser sends it."""
_LONG_QUOTES = pattern(
    rf"(?i)((?:{NAMES})[\w.-]{{0,64}}[ \t]{{0,8}}[:=][ \t]{{0,8}})((?P<marks>\"{{3}}|'{{3}})(?:(?!(?P=marks)).){{1,4096}}(?P=marks))",
    re.DOTALL,
)
_CONTINUED = pattern(rf"(?i)({_NAMED}=\\\r?\n[ \t]{{0,64}})({VALUE})(?=[ \t;]{{0,64}}\\?\r?(?:\n|\Z))")
"""Of a shell, where the line goes on behind the sign."""
_PUTTY = pattern(r"(Private-Lines: [0-9]{1,4}\r?\n)((?:[A-Za-z0-9+/=]{1,128}\r?(?:\n|\Z)){1,1000})")
_BEFORE_A_LIST = pattern(r"[:=][ \t]{0,8}\[")
_NAME_AT_MOST = 140
"""Letters of a name, what may follow within its word, quotes, and blanks before the sign."""
_ITEM = pattern(r"(?P<quote>\\{0,3}[\"'])[^\"'\n]{1,4096}(?P=quote)")
_DISGUISE = pattern(
    "[\u00a0\u00ad\u034f\u061c\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufe00-\ufe0f\ufeff\uff01-\uff5e\u201c\u201d]|\x1b\\[[0-9;]{0,16}m"
)
_ESCAPED = pattern(
    r"(?i)\\{1,4}(?:u(00(?:2[013-9a-f]|[346][0-9a-f]|5[0-9abd-f]|7[0-9a-e]|a0|ad)|20[0-6][0-9a-f]|3000|fe0[0-9a-f]|feff|ff[0-5][0-9a-f])|x(a0|ad|3[ad]))"
)
"""By its number, as JSON and Python write what is not of ASCII, and some encoders of JSON also ``=``, ``&``, ``<``; never a quote."""


def undisguised(text: str) -> str:
    """Return ``text`` as one sees it: blanks of other kinds, signs without a width, wide letters, quotes of printers and colours come along when a page, a
    chat or a terminal is copied.

    >>> undisguised("pass\\u200bword\\uff1d\\u00a0x"), undisguised("a\\\\u0026sig\\\\u003db"), undisguised("\\u00e9")
    ('password= x', 'a&sig=b', 'é')
    """
    if "\\" in text:
        text = _ESCAPED.sub(lambda found: chr(int(found[1] or found[2], 16)), text)
    return text if (text.isascii() and "\x1b" not in text) or _DISGUISE.search(text) is None else _DISGUISE.sub(_plain, text)


def _plain(found: re.Match[str]) -> str:
    sign = found[0]
    if len(sign) > 1:  # a colour
        return ""
    if sign in "\u201c\u201d":
        return '"'
    if unicodedata.category(sign) in ("Zs", "Zl", "Zp"):
        return " "
    return chr(ord(sign) - 0xFEE0) if "\uff01" <= sign <= "\uff5e" else ""


_IN_A_LINE = (
    (_OPTIONS, (" -", "\t-", " /p:", ' "-', " '-")),
    (
        _ARGUMENTS,
        (
            "passwd",
            "add_user",
            "change_password",
            "http-basic",
            "from-literal",
            "smbclient",
            "smbget",
            "cifs",
            "curlftpfs",
            "rpcclient",
            "net ",
            "mc ",
            "weka ",
            "lep ",
            "convertto-",
            "conf",
            "nmcli",
        ),
    ),
    (_PIPED, ("|",)),
    (_SQL, ("identified", "password '", 'password "', "password(", "password (", "password \\")),
    (_WORDED_KEY, tuple(f"{word} key" for word in BEFORE_KEY)),
    (
        _DIRECTIVE,
        (
            "pw ",
            "pass ",
            "word ",
            "passwd ",
            "phrase ",
            "psk ",
            "secret ",
            "stats auth",
            "community",
            "com2sec",
            "createuser",
            "md5 ",
        ),
    ),
    (_BESIDE, ("createuser", '"key', 'send "', ": psk", ' * "')),
    (_LOGIN_BESIDE, ("-a ", "auth", "etcdctl", "thin:", "sqlplus")),
    (_LOGGED_IN, ("login ", "login\t", "login(")),
    (_HERE_STRING, ("<<<",)),
    (_ACCOUNT, ("account",)),
    (_SET, ("env ", "arg ", "set")),
    (_ASKED_FOR, ("password for ", "passphrase for ", "passcode for ")),
    (_COMMENT, ("comment=",)),
    (_PROPERTY, (".secret", ".token", ".pass")),
    (_LOGIN_IN_CODE, ("%40",)),
    (_TOLD, (" is", " to", " was")),
    (_TIGHT, (":", "pw=")),
    (_PARAMETERS, ("?", "&")),
    (_HEADER_WITH_PARAMETERS, ("digest ", "aws4-")),
    (_COOKIES, ("cookie:",)),
    (_PROCTITLE, ("proctitle=",)),
    (_NAME_AND_VALUE, ("value",)),
    (_VALUE_AND_NAME, ("value",)),
    (_COLUMNS, ("|", "\t")),
    (_TUPLE, ("('", '("', "(b", "(\\")),
    (_ITEM_BEHIND, ('"-', "'-")),
    (_ELEMENT, ("</",)),
    (_OF_A_PAGE, ('="', "='")),
    (_MARKED, ("**", "__", "`", "|")),
    (_ENCODED, ("%", "&")),
)
"""What hides a value behind its name, and what a line holds, in lower case, in which it can find anything."""


def in_a_line(text: str, low: str) -> str:
    """Return one line without the secrets that stand in it in one of these forms; ``low`` is the line in lower case."""
    for form, words in _IN_A_LINE:
        if any(word in low for word in words):
            text = form.sub(hide_value, text)
    if "wandb" in low:
        text = _OF_WANDB.sub(HIDDEN, text)
    text = _without_lists(text, low)
    if "password" in low or "passphrase" in low:
        text = _TO_THE_END.sub(rf"\1{HIDDEN}", text)
    return _without_data(text)


def over_lines(text: str, low: str) -> str:
    """Return a text without the secrets whose name is on the line before: of a pod's variables, of YAML's blocks, of lists.

    >>> over_lines("- name: DB_PASSWORD\\n  value: abc\\n", "- name: db_password\\n  value: abc\\n")
    '- name: DB_PASSWORD\\n  value: hidden-by-torchtune-sys\\n'
    """
    if _VALUE_GIVEN.search(low):
        text = _VALUE_AND_NAME.sub(hide_value, _NAME_AND_VALUE.sub(hide_value, text))
    if any(word in text for word in _BEFORE_AN_ITEM) or ("- -" in text and any(word in text for word in _NEXT_ITEM)):
        text = _ITEM_BEHIND.sub(hide_value, text)
    if "chpasswd:" in low:
        text = _CHANGED.sub(lambda found: found[1] + _CHANGED_TO.sub(rf"\1{HIDDEN}", found[2]), text)
    if ": |" in text or ": >" in text:
        text = _BLOCK.sub(lambda found: f"{found[1]}{found[2]}" + _hidden_lines(found[3], f"{found[1]}  "), text)
    if "Private-Lines: " in text:
        text = _PUTTY.sub(lambda found: found[1] + _hidden_lines(found[2]), text)
    if "=\\\n" in text or "=\\\r" in text:
        text = _CONTINUED.sub(hide_value, text)
    text = without_words_below(text)
    if "form-data" in low:
        text = _PART_OF_A_FORM.sub(hide_value, text)
    text = _without_data(_without_lists(text, low) if "[\n" in text else text)
    return _LONG_QUOTES.sub(hide_value, text) if '= """' in text or "= '''" in text else text


def behind_prefixes(text: str) -> str:
    """Return a text without the secrets that show once what stands before each line, of a log, is gone.

    >>> behind_prefixes("n1: - name: A_TOKEN\\nn2: a\\nn1:   value: abc\\nn2: b")
    'n1: - name: A_TOKEN\\nn2: a\\nn1:   value: hidden-by-torchtune-sys\\nn2: b'
    """
    from torchtune_sys.formats.line_prefixes import by_writer

    lines = text.split("\n")
    for written in by_writer(lines):
        if any(start for _, start in written):
            own = "\n".join(lines[number][start:] for number, start in written)
            for (number, start), line in zip(written, over_lines(own, own.lower()).split("\n"), strict=True):
                lines[number] = lines[number][:start] + (in_a_line(line, line.lower()) if start else line)
    return "\n".join(lines)


def _hidden_lines(text: str, before: str = "") -> str:
    """As many lines as there were: what is behind a prefix has the lines of what it was."""
    return f"{before}{HIDDEN}\n" * text.count("\n") + (f"{before}{HIDDEN}" if text[-1:] != "\n" else "")


def _without_lists(text: str, low: str) -> str:
    """Return a text without the items of lists that have the name of a secret, where one stands before a list at all."""
    for found in _BEFORE_A_LIST.finditer(low):
        before = low[max(0, found.start() - _NAME_AT_MOST) : found.start()]
        if any(name in before for name in IN_NAMES):
            return _LIST.sub(_without_items, text)
    return text


def _without_items(found: re.Match[str]) -> str:
    return found[1] + _ITEM.sub(lambda item: f"{item['quote']}{HIDDEN}{item['quote']}", found[2])


_SECRET_OF_A_CLUSTER = pattern(r"(?m)^[ \t-]{0,8}kind:[ \t]{1,4}[\"']?Secret[\"']?[ \t\r]*$")
_DOCUMENT = pattern(r"(?m)^(?:---|- )")
_DATA = pattern(r"(?m)^([ \t]{0,16})((?:data|stringData):[ \t\r]*\n)((?:\1[ \t]+[^\n]*(?:\n|\Z)|[ \t]*\n){1,2000})")
_DATUM = pattern(r"(?m)^([ \t]*[\w.-]{1,253}:[ \t]+)(\S[^\n]*)$")
_DATA_IN_JSON = pattern(
    rf"((?:{QUOTE})(?:data|stringData)(?:{QUOTE})\s{{0,8}}:\s{{0,8}})(\{{[^{{}}]{{1,65536}}\}})(?=[^{{}}]{{0,400}}(?:{QUOTE})kind(?:{QUOTE})\s{{0,8}}:\s{{0,8}}(?:{QUOTE})Secret\b)"
    rf"|((?:{QUOTE})kind(?:{QUOTE})\s{{0,8}}:\s{{0,8}}(?:{QUOTE})Secret(?:{QUOTE})(?:(?!{QUOTE}kind)[^\n]|\n){{0,2000}}?(?:{QUOTE})(?:data|stringData)(?:{QUOTE})\s{{0,8}}:\s{{0,8}})(\{{[^{{}}]{{1,65536}}\}})"
)
_DATUM_IN_JSON = pattern(rf"((?:{QUOTE})\s{{0,8}}:\s{{0,8}}(?:{QUOTE}))([^\"'\\\n]{{1,65536}})")


def _without_data(text: str) -> str:
    """Return a text without what the secrets of a cluster hold, whatever the names of the values: each object by itself, since another's data may be settings.

    >>> print(_without_data("kind: Secret\\ndata:\\n  a: YQ==\\n---\\nkind: ConfigMap\\ndata:\\n  a: kept"))
    kind: Secret
    data:
      a: hidden-by-torchtune-sys
    ---
    kind: ConfigMap
    data:
      a: kept
    """
    if "Secret" not in text or "kind" not in text:
        return text
    if '"' in text:
        text = _DATA_IN_JSON.sub(_without_json_values, text)
    starts = [0, *(found.start() for found in _DOCUMENT.finditer(text)), len(text)]
    parts = (text[one:other] for one, other in itertools.pairwise(starts))
    return "".join(_DATA.sub(_without_values, part) if _SECRET_OF_A_CLUSTER.search(part) else part for part in parts)


def _without_values(found: re.Match[str]) -> str:
    return found[1] + found[2] + _DATUM.sub(rf"\1{HIDDEN}", found[3])


def _without_json_values(found: re.Match[str]) -> str:
    head, data = (found[1], found[2]) if found[1] is not None else (found[3], found[4])
    return head + _DATUM_IN_JSON.sub(rf"\1{HIDDEN}", data)
