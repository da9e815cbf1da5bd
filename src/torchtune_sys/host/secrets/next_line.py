"""Secrets that stand alone on the line below their name, as YAML and wrapped headers have them."""

from __future__ import annotations

from torchtune_sys.host.secrets.values import hide_value
from torchtune_sys.host.secrets.words import IN_QUOTES, NAMES
from torchtune_sys.model.patterns import pattern

_LINE_AT_MOST = 140
"""Letters of a name's line before its end."""
_BELOW = pattern(
    rf"(?i)((?:[\w.-]{{0,64}}(?:{NAMES})[\w.-]{{0,64}}[\"']?[ \t]{{0,8}}:[ \t]{{0,8}}\r?\n[ \t]{{1,64}})|(?:authorization[\"']?[ \t]{{0,8}}:[ \t]{{0,8}}(?:bearer|basic|token)[ \t]{{0,8}}\r?\n[ \t]{{0,64}}))"
    rf"([^\s:{{\[\"'-]\S{{6,4094}}[^\s:,{{\[(](?=[ \t]{{0,8}}\r?(?:\n|\Z))|(?:{IN_QUOTES})(?=,?[ \t]{{0,8}}\r?(?:\n|\Z)))"
)
"""A word alone on the line below, or one in quotes: of YAML, of an object that is written over lines, and of a header that was wrapped. A name of YAML ends with a colon."""
_NAME_AT_END = pattern(rf"(?i)(?:{NAMES})[\w.-]{{0,64}}[\"']?[ \t]{{0,8}}\Z")
_HEADER_AT_END = pattern(r"(?i)authorization[\"']?[ \t]{0,8}\Z")
_ABOVE = pattern(r"(?i):([ \t]{0,8}(?:bearer|basic|token))?[ \t]{0,8}\r?\n[ \t]{0,64}[^\s:{\[-]")


def without_words_below(text: str) -> str:
    """Return a text without them. It looks only at lines that end as one above a value does: to look for a name at each letter takes microseconds for each."""
    parts: list[str] = []
    at = 0
    for found in _ABOVE.finditer(text):
        begins = max(at, text.rfind("\n", 0, found.start()) + 1, found.start() - _LINE_AT_MOST)
        ends = text.find("\n", found.end())
        named = (_HEADER_AT_END if found[1] else _NAME_AT_END).search(text[begins : found.start()])
        below = named and _BELOW.match(text, begins + named.start(), ends if ends >= 0 else len(text))
        if below:
            parts += text[at : below.start()], hide_value(below)
            at = below.end()
    return "".join(parts) + text[at:]
