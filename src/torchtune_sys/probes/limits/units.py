"""Limits of a systemd service by its unit file, drop-ins and the manager's defaults, where its process cannot be asked.

systemd.unit(5): of files with one name that in /etc counts, then /run, /usr/local/lib, /usr/lib; drop-ins are read in the order of their
names whatever their directory, and what comes later wins. systemd-system.conf(5): DefaultLimit… likewise.
"""

from __future__ import annotations

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.limits import SessionLimit
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.drop_ins import files_by_name

_ROOTS = ("/etc/systemd", "/run/systemd", "/usr/local/lib/systemd", "/usr/lib/systemd", "/lib/systemd")
_BUILT_IN = {"MEMLOCK": SessionLimit(soft=8 << 20, hard=8 << 20), "NOFILE": SessionLimit(soft=1024, hard=524288)}
"""systemd-system.conf(5); before v240 (NOFILE) and v246 (MEMLOCK) the kernel's own, which are lower still."""
_MOST = 1 << 62

Assigned = dict[str, str]


def look(host: Host, unit: str) -> tuple[Fact[SessionLimit], Fact[SessionLimit], str]:
    """Return the limits of locked memory, open files, and the file that has the unit."""
    place, text = _first(host, f"system/{unit}.service")
    if isinstance(text, Missing):
        return text, text, place
    service = parse_section(text, "Service")
    for drop_in in _drop_ins(host, f"system/{unit}.service.d"):
        service.update(parse_section(drop_in, "Service"))
    _, main = _first(host, "system.conf")
    manager = {} if isinstance(main, Missing) else parse_section(main, "Manager")
    for drop_in in _drop_ins(host, "system.conf.d"):
        manager.update(parse_section(drop_in, "Manager"))
    memlock, nofile = (
        _limit(service.get(f"Limit{name}", ""), manager.get(f"DefaultLimit{name}", ""), name) for name in _BUILT_IN
    )
    return memlock, nofile, place


def _first(host: Host, name: str) -> tuple[str, Fact[str]]:
    first: Missing | None = None
    for root in _ROOTS:
        text = host.text(f"{root}/{name}")
        if not isinstance(text, Missing):
            return f"{root}/{name}", text
        if first is None or (first.why is Why.ABSENT and text.why is not Why.ABSENT):
            first = text
    return f"{_ROOTS[0]}/{name}", first if first is not None else Missing(Why.ABSENT, name, "no such file")


def _drop_ins(host: Host, name: str) -> list[str]:
    texts = map(host.text, files_by_name(host, (f"{root}/{name}" for root in _ROOTS)).values())
    return [text for text in texts if not isinstance(text, Missing)]


def parse_section(text: str, section: str) -> Assigned:
    r"""Return assignments of limits in one section; the last of each name, ``""`` where it is taken back.

    >>> parse_section("[Unit]\nLimitCORE=0\n[Service]\n# LimitNOFILE=1\nLimitMEMLOCK=infinity\nLimitNOFILE = 1024:4096\n", "Service")
    {'LimitMEMLOCK': 'infinity', 'LimitNOFILE': '1024:4096'}
    """
    found: Assigned = {}
    inside = False
    for raw in text.split("\n"):
        line = raw.strip()
        if line.startswith("["):
            inside = line == f"[{section}]"
        elif inside and line[:1] not in ("#", ";"):
            name, equals, value = line.partition("=")
            if equals and "Limit" in name:
                found[name.strip()] = value.strip()
    return found


def _limit(own: str, default: str, name: str) -> Fact[SessionLimit]:
    text = own or default
    if not text:
        return _BUILT_IN[name]
    found = parse_limit(text)
    return Missing(Why.UNPARSED, f"Limit{name}", f"not a limit: {text[:40]!r}") if found is None else found


def parse_limit(text: str) -> SessionLimit | None:
    """Return a limit as systemd.exec(5) has it: one number for both, or soft:hard; suffixes are powers of 1024.

    >>> parse_limit("infinity"), parse_limit("1024:4096"), parse_limit("8M")
    (SessionLimit(soft=None, hard=None), SessionLimit(soft=1024, hard=4096), SessionLimit(soft=8388608, hard=8388608))
    """
    soft, colon, hard = text.partition(":")
    numbers = [_number(word.strip()) for word in (soft, hard if colon else soft)]
    if any(number is not None and number < 0 for number in numbers):
        return None
    return SessionLimit(soft=numbers[0], hard=numbers[1])


def _number(word: str) -> int | None:
    """None is infinity, -1 what cannot be read."""
    if word == "infinity":
        return None
    digits, suffix = (word[:-1], word[-1]) if word[-1:] in ("K", "M", "G", "T", "P") else (word, "")
    if (count := natural(digits)) is None:
        return -1
    number = count << (10 * (" KMGTP".index(suffix) if suffix else 0))
    return number if number <= _MOST else None
