"""Forms in which secrets stand that few texts hold: options of programs, parameters of URLs, headers of proxies, encoded text, and values on a line of their own."""

from __future__ import annotations

import re
import unicodedata

from torchtune_sys.host.secret_values import HIDDEN, hide_value
from torchtune_sys.host.secret_words import IN_ESCAPED_QUOTES, IN_QUOTES, NAMES, QUOTE, VALUE
from torchtune_sys.model.patterns import pattern

_NAMED = rf"[\w.-]{{0,64}}(?:{NAMES})[\w.-]{{0,64}}"
_SAME_COMMAND = r"[^\n|;&]{0,200}?[ \t]"
_PROGRAMS = pattern(
    r"\b((?:"
    rf"(?:docker|podman|nerdctl|skopeo|oras|registry)[ \t]+login{_SAME_COMMAND}-p"
    rf"|ipmi\w{{0,16}}{_SAME_COMMAND}-P|(?:racadm|redfish\w{{0,8}}|mongo\w{{0,8}}){_SAME_COMMAND}-p"
    rf"|redis-cli{_SAME_COMMAND}-a|ldap\w{{0,16}}{_SAME_COMMAND}-w|(?:mysql|mariadb)[\w-]{{0,16}}{_SAME_COMMAND}-p(?=\S)|snmp\w{{0,16}}{_SAME_COMMAND}-c"
    rf"|curl{_SAME_COMMAND}(?:-b|--cookie)|(?:smbclient|[\w.]{{0,12}}cifs){_SAME_COMMAND}(?:-U|--user)[ \t=]{{0,4}}[^\s%]{{1,64}}%"
    rf"|(?:config|configure)[ \t]+(?:set|--global)[ \t]+{_NAMED}"
    rf")[ \t=]{{0,4}})({VALUE})"
)
"""Programs whose options for a password have one letter: their manual pages."""
_PIPED = pattern(
    rf"\b((?:echo|printf)[ \t]+(?:-\w+[ \t]+|['\"]?%s(?:\\n)?['\"]?[ \t]+){{0,2}})({VALUE})"
    r"(?=[ \t]{0,8}\|[ \t]{0,8}(?:sudo[ \t]+-S|chpasswd|kinit|passwd\b|[^\n|]{1,200}?-stdin\b|sudo[ \t]+chpasswd))"
)
_PARAMETERS = pattern(r"(?i)([?&;](?:key|code|signature)=)(?![0-9]{1,5}\b)([^\s\"'&<>\\]{1,4096})")
_HEADER_WITH_PARAMETERS = pattern(
    rf"(?i)(authorization(?:{QUOTE})?[ \t]{{0,4}}[:,][ \t]{{0,4}}b?(?:{QUOTE})?(?:digest|aws4-[\w-]{{1,20}})[ \t]{{1,4}})([^\n]{{1,4096}})"
)
_COOKIES = pattern(r"(?i)(\b(?:set-)?cookie:[ \t]{0,4})([^\n\"']{1,4096})")
_OF_WANDB = pattern(r"(?<![0-9A-Za-z])[0-9a-f]{40}(?![0-9A-Za-z])")
_TUPLE = pattern(
    rf"(?i)(\(b?{QUOTE}{_NAMED}{QUOTE},[ \t]{{0,8}})(?!b?{QUOTE}[^'\"]{{0,5}}['\"])"
    rf"(b?(?:{IN_QUOTES}|{IN_ESCAPED_QUOTES}|\\{{1,3}}'[^'\n]{{1,4096}}(?:'|\Z)))"
)
_ELEMENT = pattern(rf"(?i)(<(?:\w{{1,64}}:)?{_NAMED}(?:[ \t][^<>\n]{{0,200}})?>)([^<>\s][^<>\n]{{0,4096}})(?=</)")
_ENCODED_QUOTE = r"(?:%22|%27|&quot;|&#0?3[49];)"
_ENCODED = pattern(
    rf"(?i)((?:{NAMES})[\w.-]{{0,64}}{_ENCODED_QUOTE}?(?:%3[ad]|[:=])(?:%20|\+|[ ])?{_ENCODED_QUOTE}?)([^\s\"'<>&%,;]{{1,4096}})"
)
_NAME_AND_VALUE = pattern(
    rf"(?i)(\b(?:name|key)(?:{QUOTE})?[ \t]{{0,8}}[:=][ \t]{{0,8}}(?:{QUOTE})?{_NAMED}(?:{QUOTE})?,?(?:\\n|\s){{0,80}}(?:{QUOTE})?value(?:{QUOTE})?[ \t]{{0,8}}[:=][ \t]{{0,8}})({VALUE})"
)
_BLOCK = pattern(
    rf"(?im)^([ \t]{{0,64}})((?:-[ \t])?[\"']?{_NAMED}[\"']?[ \t]{{0,8}}:[ \t]{{1,8}}[|>][0-9+-]{{0,2}}[ \t]{{0,8}}\n)((?:\1[ \t]+[^\n]*(?:\n|\Z)){{1,200}})"
)
_LIST = pattern(rf"(?i)((?:{NAMES})[\w.-]{{0,64}}(?:{QUOTE})?[ \t]{{0,8}}[:=][ \t]{{0,8}}\[)([^\[\]{{}}]{{1,4096}})(?=\])")
_LONG_QUOTES = pattern(
    rf"(?i)((?:{NAMES})[\w.-]{{0,64}}[ \t]{{0,8}}[:=][ \t]{{0,8}})((?P<marks>\"{{3}}|'{{3}})(?:(?!(?P=marks)).){{1,4096}}(?P=marks))",
    re.DOTALL,
)
_ITEM = pattern(r"(?P<quote>\\{0,3}[\"'])[^\"'\n]{1,4096}(?P=quote)")
_DISGUISE = pattern(
    "[\u00a0\u00ad\u034f\u061c\u180e\u2000-\u200f\u2028-\u202f\u205f-\u206f\u3000\ufe00-\ufe0f\ufeff\uff01-\uff5e]"
)
_ESCAPED = pattern(
    r"(?i)\\{1,4}(?:u(00(?:2[013-9a-f]|[346][0-9a-f]|5[0-9abd-f]|7[0-9a-e]|a0|ad)|20[0-6][0-9a-f]|3000|fe0[0-9a-f]|feff|ff[0-5][0-9a-f])|x(a0|ad))"
)
"""By its number, as JSON and Python write what is not of ASCII, and some encoders of JSON also ``=``, ``&``, ``<``; never a quote."""


def undisguised(text: str) -> str:
    """Return ``text`` as one sees it: blanks of other kinds, signs without a width and wide letters come along when a page or a chat is copied.

    >>> undisguised("pass\\u200bword\\uff1d\\u00a0x"), undisguised("a\\\\u0026sig\\\\u003db"), undisguised("\\u00e9")
    ('password= x', 'a&sig=b', 'é')
    """
    if "\\" in text:
        text = _ESCAPED.sub(lambda found: chr(int(found[1] or found[2], 16)), text)
    return text if text.isascii() or _DISGUISE.search(text) is None else _DISGUISE.sub(_plain, text)


def _plain(found: re.Match[str]) -> str:
    sign = found[0]
    if unicodedata.category(sign) in ("Zs", "Zl", "Zp"):
        return " "
    return chr(ord(sign) - 0xFEE0) if "\uff01" <= sign <= "\uff5e" else ""


def in_a_line(text: str, low: str) -> str:
    """Return one line without the secrets that stand in it in one of these forms; ``low`` is the line in lower case."""
    text = _PROGRAMS.sub(hide_value, text)
    if "|" in text:
        text = _PIPED.sub(hide_value, text)
    if "=" in text and ("?" in text or "&" in text):
        text = _PARAMETERS.sub(hide_value, text)
    if "digest " in low or "aws4-" in low:
        text = _HEADER_WITH_PARAMETERS.sub(hide_value, text)
    if "cookie:" in low:
        text = _COOKIES.sub(hide_value, text)
    if "wandb" in low:
        text = _OF_WANDB.sub(HIDDEN, text)
    if "value" in low:
        text = _NAME_AND_VALUE.sub(hide_value, text)
    if "[" in text:
        text = _LIST.sub(_without_items, text)
    if "(" in text:
        text = _TUPLE.sub(hide_value, text)
    if "</" in text:
        text = _ELEMENT.sub(hide_value, text)
    return _ENCODED.sub(hide_value, text) if "%" in text or "&" in text else text


def over_lines(text: str, low: str) -> str:
    """Return a text without the secrets whose name is on the line before: of a pod's variables, of YAML's blocks, of lists.

    >>> over_lines("- name: DB_PASSWORD\\n  value: abc\\n", "- name: db_password\\n  value: abc\\n")
    '- name: DB_PASSWORD\\n  value: hidden-by-torchtune-sys\\n'
    """
    if "value" in low:
        text = _NAME_AND_VALUE.sub(hide_value, text)
    if ": |" in text or ": >" in text:
        text = _BLOCK.sub(lambda found: f"{found[1]}{found[2]}{found[1]}  {HIDDEN}\n", text)
    if "[\n" in text:
        text = _LIST.sub(_without_items, text)
    return _LONG_QUOTES.sub(hide_value, text) if '= """' in text or "= '''" in text else text


def _without_items(found: re.Match[str]) -> str:
    return found[1] + _ITEM.sub(lambda item: f"{item['quote']}{HIDDEN}{item['quote']}", found[2])
