r"""Take passwords, tokens and keys out of what a host says, where it is read: what is never read is in no output.

In this order: what can hold none passes as it is (``host/scrubbed.py``, arguments of the kernel by name); then what has the
name or the shape of a secret goes; last what looks like one by chance alone, long words of mixed letters and digits.

>>> scrubbed("srun --api-key abc123 --lr 3e-4"), scrubbed("pull https://joe:pw@hub/x")
('srun --api-key hidden-by-torchtune-sys --lr 3e-4', 'pull https://hidden-by-torchtune-sys@hub/x')
>>> scrubbed("key hf_abcdefghijklmnopqrstuvwxyz"), scrubbed("GPU-0a1b2c3d-1111-2222-3333-444455556666")
('key hidden-by-torchtune-sys', 'GPU-0a1b2c3d-1111-2222-3333-444455556666')
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from torchtune_sys.host.environment import secret_name
from torchtune_sys.host.secrets.values import HIDDEN, hide_value, is_issued, looks_random
from torchtune_sys.host.secrets.words import (
    HINTS,
    IN_ESCAPED_QUOTES,
    IN_FORMS,
    IN_NAMED_FORMS,
    IN_NAMES,
    IN_QUOTES,
    IN_TOKENS,
    IN_VARIABLES,
    NAMES,
    QUOTE,
    SHAPES,
    VALUE,
    may_be_in_pieces,
)
from torchtune_sys.model.patterns import pattern

_TOKEN = pattern("|".join(shape for shape, _, _ in SHAPES))

_SUBSCRIPT = rf"\](?=[ \t]{{0,8}}=[ \t]{{0,8}}[bBrRuUfF]?{QUOTE})"
"""``os.environ["HF_TOKEN"] = "x"``, as a traceback shows it; not what is given another variable's value."""
_KEYED = pattern(
    rf"(?i)((?:{NAMES})[\w.-]{{0,64}}(?:{QUOTE}(?:{_SUBSCRIPT})?)?[ \t]{{0,8}}(?:[:?+]=|={{1,2}}>|->|::(?=[ \t])|=(?!=)|(?<=[\"'])[ \t]{{0,8}}:)[ \t]{{0,8}})({VALUE})"
)
_KEYED_IN_QUOTES = pattern(
    rf"(?i)((?:{NAMES})[\w.-]{{0,64}}(?:{QUOTE}(?:{_SUBSCRIPT})?)?[ \t]{{0,8}}[=:][ \t]{{0,8}})({IN_QUOTES}|{IN_ESCAPED_QUOTES})"
)
_YAML = pattern(
    rf"(?im)((?:{NAMES})[\w.-]{{0,64}}[ \t]{{0,8}}(?:\[[^\]\n]{{0,40}}\])?:[ \t]{{1,8}}(?:[!&]!?[\w-]{{1,20}}[ \t])?)({VALUE})(?=[ \t]{{0,8}}(?:$|\\?[\"']|,[ \t]|\}}))"
)
_OPTION = pattern(
    rf"(?i)(?<![\w-])((?=-)[\w.-]{{0,42}}(?:{NAMES})[\w.-]{{0,20}}(?<![-_]file)[ \t]{{1,4}})(?!-)({VALUE})"
    r"|\b((?:sshpass(?:[\"'],?)?[ \t]+(?:a1=)?[\"']?-p(?:[\"'],?)?(?:[ \t]+a2=)?|curl[ \t](?:[^\n|;&]{0,200}?[ \t])??(?:-u|--user))[ \t]{0,4})"
    rf"({VALUE})"
)
_UPPER = pattern(rf"(?<![A-Za-z0-9_])([A-Z][A-Z0-9_]{{2,60}})(=)({VALUE})")
_HEADER = pattern(
    rf"(?i)\b((?:proxy-)?authorization(?:{QUOTE})?[ \t]{{0,4}}[:,][ \t]{{0,4}}b?(?:{QUOTE})?(?!digest|aws4)(?:[\w-]{{1,20}}[ \t]{{1,4}})?|bearer[ \t]{{1,4}})([\w.~+/=:!@-]{{8,}})"
)
_NETRC = pattern(
    r"(\b(?:password|secret|key-string|server-key|(?:tacacs|radius)-server[ \t][^\n]{0,100}?\bkey)[ \t]+[0-9]{1,3}[ \t]+)(?=\S{4,400}[ \t]*(?:$|[\"']))([^\s\"']{4,400})"
    r"|(?:(?m:^)|(?<=\s))((?:[ \t]*|login[ \t]+\S{1,200}[ \t]+)password[ \t]+)(?![-=:]+>?[ \t]|(?:is|was|has|for|auth\w{0,20}|not|incorrect|expired|required|prompt|file)\b)(\S{1,400})"
)
"""On consoles of switches and of BMCs a number stands between, of the form or of the user."""
_LOGIN = pattern(r"://([^\s/@:\"'<>]{0,256}:(?![0-9]{1,5}(?:/|\Z))[^\s\"'<>,]{1,1024}|[^\s/@\"'<>]{1,1024})@(?=[\w.\[-]|\Z)")
_SOURCE_LOGIN = pattern(
    r"(?:(?<=//)|(?<![\w@.:/]))([\w.+%-]{1,64}:[^\s/@:,]{1,256})@(?=[\w-]+(?:\.[\w-]+)*(?::?/|:[0-9]{2,5}(?![\w.:@]))|(?:tcp|unix)\()"
)
_BEHIND_A_LOGIN = pattern(r"[/(]|:[0-9]")
_ADDRESS = pattern(r"[0-9.]+|[0-9a-fA-F:]+")
_PEM_BEGIN, _PEM_END = (
    pattern(r"-----BEGIN (?:[A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?|OpenVPN (?:Static key|tls-crypt)[\w -]{0,40})-----"),
    "-----END ",
)
_LONG = pattern(r"(?<![A-Za-z0-9+/=_.-])[A-Za-z0-9+/]{22,}(?:={1,2}(?![A-Za-z0-9=_-])|(?![A-Za-z0-9+/=_-]))|[A-Za-z0-9]{20,}")
_WORD = pattern(r"[A-Za-z0-9]{20,}")
_IN_BASE_64 = (40, 64, 70, 76)
"""Letters of keys in base 64 that need no ``=`` at their end, and of the lines of longer ones."""


def scrubbed(text: str, *, may_be_a_log: bool = True) -> str:
    """Return ``text`` without its secrets; ``may_be_a_log``: something may stand before each line."""
    if len(text) < _SHORTEST:
        return text
    if "-----BEGIN" in text:
        text = _without_keys(text)
    if "\n" in text:
        low = _without_usual(_lowered(text := _in_pieces(text)))
        hints = tuple(word for word in HINTS if word in low)  # each line has few of a long text's, and none that it lacks
        if _has(low, _OVER_LINES) and _has(low, _IN_NAMES_OVER_LINES):
            text = _forms().over_lines(text, low)
            text = _forms().behind_prefixes(text) if may_be_a_log else text
        if hints or "ommand line: " in text or not text.isascii():
            text = "\n".join(_lines(text, hints))
    elif "ommand line: " in text or not text.isascii() or _has(_lowered(text), HINTS):
        text = _line(text)
    return _LONG.sub(_unless_random, text)


def _lines(text: str, hints: tuple[str, ...]) -> Iterator[str]:
    """Yield the lines without their secrets; most hold no hint, and are not looked at further."""
    special = "\\" in text or "\x1b" in text or "ommand line: " in text or not text.isascii()
    for line, low in zip(text.split("\n"), _without_usual(_lowered(text)).split("\n"), strict=True):
        if special or _has(low, hints):
            end = "\r" if line[-1:] == "\r" else ""
            yield _line(line.removesuffix("\r"), hints) + end
        else:
            yield line


def _in_pieces(text: str) -> str:
    if may_be_in_pieces(text):
        from torchtune_sys.host.secrets.pieces import without_pieces  # few texts have any

        text = without_pieces(text, lambda line: _LONG.sub(_unless_random, _line(line)))
    return text


def brief(text: str, most: int) -> str:
    """Return the beginning of ``text`` without its secrets. Cut first, half of a secret would stand there, and be known by nothing.

    >>> brief("no login with hf_abcdefghijklmnopqrstuvwxyz", 30)
    'no login with hidden-by-torcht'
    """
    return scrubbed(text.strip())[:most]


_SHORTEST = 6  # characters: pass=x


_KERNELS_LINE = pattern(r"(?:Kernel c|(?:\]|kernel:) C)ommand line: ")
"""In its own log; of a job's command line nothing is known."""


def _line(text: str, hints: tuple[str, ...] = HINTS) -> str:
    """``hints``: those of ``HINTS`` that the line may hold."""
    if (not text.isascii() or "\\u" in text or "\\x" in text or "\x1b" in text) and (plain := _forms().undisguised(text)) != text:
        hidden = _line(plain)
        return text if hidden == plain else hidden
    if "ommand line: " in text and (start := _KERNELS_LINE.search(text)) is not None:
        text = text[: start.end()] + scrubbed_arguments(text[start.end() :])
    if ("\\" in text or "\x1b" in text) and _ESCAPES.search(text):
        parts = _ESCAPES.split(_SPOKEN.sub(hide_value, _KEYED_IN_QUOTES.sub(hide_value, text)))
        return "".join(part if place % 2 else _of_hints(part, hints) for place, part in enumerate(parts))
    return _of_hints(text, hints)


_SPOKEN = pattern(r"((?:\"|\\n)(?:AUTH|PASS) {1,4}(?:[^\s\"\\]{1,64} {1,4})?)([^\s\"\\]{4,400})(?=\\{1,4}r)")
"""What a program says to log in, as strace and dumps of packets show it: of Redis, FTP, POP3."""
_ESCAPES = pattern(r"(\\{1,4}[nrt]|(?:\x1b|\\{1,4}(?:x1b|u001b|033|e))\[[0-9;]{0,16}[A-Za-z])")
"""Line breaks of a text that is quoted, and colours: the letter at their end is none of the word that follows. A value in quotes may hold them."""


def _of_hints(text: str, hints: tuple[str, ...]) -> str:
    low = _without_usual(_lowered(text))
    return _by_name(_by_shape(text, low), low, _forms_among(hints)) if _has(low, hints) else text


@lru_cache(maxsize=64)
def _forms_among(hints: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(word for word in IN_FORMS if word in hints or word not in HINTS)


_USUAL = (
    *("syncookies", "# uncomment the next line to enable tcp/ip syn cookies", "# magic system request key"),
    *("logind", "powerkey", "rebootkey", "suspendkey", "hibernatekey"),
)
"""What the files of every distribution say of the kernel's settings and of systemd's, with the words of secrets in it: to compile what would be
sought beside those takes longer than all else that is sought."""


def _without_usual(low: str) -> str:
    for word in _USUAL:
        if word in low:
            low = low.replace(word, " ")
    return low


def _lowered(text: str) -> str:
    """As patterns that ignore case see it: two letters of other scripts are taken for s and i."""
    return text.lower() if text.isascii() else text.lower().replace("\u017f", "s").replace("\u0131", "i")


def _has(low: str, words: tuple[str, ...]) -> bool:
    for word in words:  # noqa: SIM110 - any() takes twice as long, and this is asked of every line that is read
        if word in low:
            return True
    return False


def _by_shape(text: str, low: str) -> str:
    if "@" in text:
        text = _LOGIN.sub(_login, text) if "://" in text else text
        if ":" in text[: text.rfind("@")] and _BEHIND_A_LOGIN.search(text, text.find("@")):
            text = _SOURCE_LOGIN.sub(_unless_address, text)
    if not _has(low, IN_TOKENS):
        return text
    shapes = [shape for shape, words, _ in SHAPES if _has(low, words)]
    # To compile the pattern of all takes a third of a bare Python's start.
    return (_TOKEN if len(shapes) > 1 else re.compile(shapes[0])).sub(_whole_word, text)


def _by_name(text: str, low: str, forms: tuple[str, ...]) -> str:
    is_named = _has(low, IN_NAMES)
    if "authorization" in low or "bearer" in low:
        text = _HEADER.sub(hide_value, text)
    if "=" in text and _has(low, IN_VARIABLES) and _names_a_variable(text):
        text = _UPPER.sub(lambda found: f"{found[1]}={HIDDEN}" if secret_name(found[1]) else found[0], text)
    if (is_named and "-" in text and _names_an_option(low)) or "sshpass" in low or "curl" in low:
        text = _OPTION.sub(hide_value, text)
    if is_named and (_names_a_key(low, "=") or _names_a_key(low, ":") or _names_a_key(low, "->")):
        text = _KEYED.sub(hide_value, text)
    if is_named and (": " in text or ":\t" in text):
        text = _YAML.sub(hide_value, text)
    if _has(low, forms) or (is_named and _has(low, IN_NAMED_FORMS)):
        text = _forms().in_a_line(text, low)
    return _NETRC.sub(hide_value, text) if _has(low, _BEFORE_A_NUMBER) else text


_BEFORE_A_NUMBER = ("password", "secret ", "key-string", "server")
_OVER_LINES = (
    *("private-lines: ", "chpasswd:", "value", ": |", ": >", "[\n", '= """', "= '''", "kind", "form-data", '"-', "'-", "- -"),
    *("=\\\n", "=\\\r"),
    *(f"{word}{end}" for word in ("token:", "secret:", "key:", ": bearer", ": basic", ": token", "':", '":') for end in "\r\n"),
    *("pw ", "pass ", "word ", "word=", "word:", "phrase", "psk ", "secret "),
    *("env ", "arg ", ".secret", ".token", ".pass", "community", ' * "'),
)
"""What stands in a text of which a secret and its name are on two lines, or where the beginning of a line matters."""
_IN_NAMES_OVER_LINES = (*IN_NAMES, "private-lines", "community", ' * "')


def _forms() -> Any:
    """Return the patterns for what few texts hold: imported when one does."""
    from torchtune_sys.host.secrets import forms

    return forms


def _names_an_option(low: str) -> bool:
    """Whether a word with a hyphen and the name of a secret stands before one that is no option itself: without, ``_OPTION`` finds nothing."""
    words = low.split()
    return any("-" in one and other[0] != "-" and _has(one, IN_NAMES) for one, other in itertools.pairwise(words))


def _names_a_key(low: str, sign: str) -> bool:
    """Whether the word before a ``sign`` has the name of a secret: without, ``_KEYED`` finds nothing."""
    return any(_has(part[-_KEY_AT_MOST:], IN_NAMES) for part in low.split(sign)[:-1])


def _names_a_variable(text: str) -> bool:
    """Whether what stands before a ``=`` ends as the name of a variable does: without, ``_UPPER`` finds nothing."""
    return any(part[-1:].isupper() or part[-1:].isdigit() or part[-1:] == "_" for part in text.split("=")[:-1])


_KEY_AT_MOST = 128
"""Letters of a name, what may follow within its word, quotes, and blanks before the sign."""


def _whole_word(found: re.Match[str]) -> str:
    before = found.string[found.start() - 1 : found.start()]
    return found[0] if before.isalnum() and found[0][0].isalnum() else HIDDEN


def _login(found: re.Match[str]) -> str:
    """``https://user:password@`` and ``https://token@``; a user alone, as in ``ssh://git@``, is no secret."""
    user, colon, password = found[1].partition(":")
    return found[0] if not password and len(user) < (_LONG_BEFORE_NOTHING if colon else _LONG_USER) else f"://{HIDDEN}@"


_LONG_USER, _LONG_BEFORE_NOTHING = 20, 12
"""Letters of a user alone; before a colon and no password stands a token where one can."""


def _unless_address(found: re.Match[str]) -> str:
    """``user:password@server:/path``; in ``tcp:10.0.0.2@tcp:/`` Lustre names a server."""
    return found[0] if _ADDRESS.fullmatch(found[1].partition(":")[2]) else f"{HIDDEN}@"


def _without_keys(text: str) -> str:
    """Private keys in PEM and OpenPGP's armour; one without an end takes the rest with it."""
    parts = []
    at = 0
    while found := _PEM_BEGIN.search(text, at):
        end = text.find(_PEM_END, found.end())
        stop = text.find("-----", end + len(_PEM_END)) if end >= 0 else -1
        parts += [text[at : found.start()], HIDDEN]
        at = stop + 5 if stop >= 0 else len(text)
    return "".join([*parts, text[at:]])


def _unless_random(found: re.Match[str]) -> str:
    word, at = found[0], found.start()
    if (word[-1] == "=" or len(word) in _IN_BASE_64 or word.isalnum()) and looks_random(word):
        return HIDDEN
    text = found.string

    def unless_random(part: re.Match[str]) -> str:
        begin, end = at + part.start(), at + part.end()
        return HIDDEN if looks_random(part[0]) or is_issued(text, begin, end) else part[0]

    return _WORD.sub(unless_random, word)


def scrubbed_file(text: str, path: str) -> str:
    """Return the text of the file ``path`` without its secrets."""
    if path in ("/proc/cmdline", "/etc/kernel/cmdline"):
        text = scrubbed_arguments(text)
    elif path.startswith(("/boot/", "/etc/default/grub", "/efi/")):
        text = _BOOT_LINE.sub(lambda found: found[1] + scrubbed_arguments(found[2]), text)
    return scrubbed(text, may_be_a_log="log" in path)


_BOOT_LINE = pattern(r"(?m)^([ \t]{0,20}(?:linux(?:16|efi)?|options|GRUB_CMDLINE_LINUX\w{0,20}=)[ \t\"']{0,4})([^\n]*)")
_ARGUMENT = pattern(r"(?<!\S)([\w.-]+)=(\"[^\"]*\"|\S+)")
_LOGIN_IN_ARGUMENT = pattern(r":[^\s:@/]{1,256}@(?!tcp|o2ib)")
"""``netroot=iscsi:joe:password@10.0.0.1``."""
_PLAIN_VALUE = pattern(
    r"(?:0x)?[0-9a-fA-F]{1,16}[KMGTkmgt]?|[\d.,:;@*!-]{1,200}|on|off|auto|force|yes|no|[ynYN]|true|false|none|always|never|default"
)


def scrubbed_arguments(text: str) -> str:
    """Return the kernel's arguments without secrets: a value stays where the argument is known to hold no secret, or where the value is a number or a switch.

    >>> scrubbed_arguments("root=UUID=ab ro iommu=pt netboot_auth=joe ks=http://x/y quiet")
    'root=UUID=ab ro iommu=pt netboot_auth=hidden-by-torchtune-sys ks=hidden-by-torchtune-sys quiet'
    """
    return _ARGUMENT.sub(lambda found: found[0] if _known(found[1], found[2]) else f"{found[1]}={HIDDEN}", text)


def _known(name: str, value: str) -> bool:
    from torchtune_sys.host.kernel_arguments import harmless

    if (_has(_lowered(name), IN_NAMES) and re.search(NAMES, name, re.IGNORECASE)) or (
        "@" in value and _LOGIN_IN_ARGUMENT.search(value)
    ):
        return False
    return harmless(name) or _PLAIN_VALUE.fullmatch(value.strip('"')) is not None


def scrubbed_data(value: Any, scrub: Callable[[str], str] = scrubbed) -> Any:
    """Return plain data without the secrets in its texts."""
    if isinstance(value, str):
        return scrub(value)
    if isinstance(value, dict):
        return {name: scrubbed_data(item, scrub) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [scrubbed_data(item, scrub) for item in value]
    return value


def scrubbed_answer(value: Any) -> Any:
    """Return the same as :func:`scrubbed_data`; short texts are looked at together first, since few answers have anything that calls for more."""
    found: list[str] = []
    _gather(value, found)
    together = "\n".join(found)
    return value if len(together) < _TOGETHER and scrubbed(together) == together else scrubbed_data(value)


_TOGETHER = 1 << 16


def _gather(value: Any, found: list[str]) -> None:
    if isinstance(value, str):
        found.append(value)
    elif isinstance(value, (dict, list, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            _gather(item, found)
