"""List what earlier kernel crashes left behind: pstore records and kdump dumps. Only names are read; they contain the time."""

from __future__ import annotations

import re

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.kernel import KernelDump
from torchtune_sys.model.values import Missing, Why

PLACES = ("/sys/fs/pstore", "/var/lib/systemd/pstore", "/var/crash")
"""The firmware's or RAM's store (Documentation/ABI/testing/pstore), where systemd-pstore.service(8) moves it, and kdump's."""


def read(host: Host) -> Fact[tuple[KernelDump, ...]]:
    """Return the dumps in all places; Missing where one cannot be read and the others hold none."""
    today = host.ask(queries.TODAY)
    found: list[KernelDump] = []
    refused: Missing | None = None
    for place in PLACES:
        names = host.names(place)
        if isinstance(names, Missing):
            refused = names if names.why is not Why.ABSENT else refused
            continue
        found += (dump for name in names if (dump := parse(place, name, today if isinstance(today, str) else "")))
    return refused if refused is not None and not found else tuple(found)


def parse(place: str, name: str, today: str) -> KernelDump | None:
    """Return the dump that an entry is; None for what else lies there (the console's log, apport's reports, kdump's own files).

    >>> parse("/sys/fs/pstore", "dmesg-efi-155741337601001", "2019-05-11")
    KernelDump(path='/sys/fs/pstore/dmesg-efi-155741337601001', age_days=2)
    >>> parse("/sys/fs/pstore", "dmesg-erst-6520347102375936001", "2018-03-07").age_days
    26
    >>> parse("/var/crash", "127.0.0.1-2026-11-20-12:30:05", "2026-11-21").age_days, parse("/var/crash", "202611201230", "").age_days
    (1, None)
    >>> parse("/var/crash", "_usr_bin_python3.0.crash", "2026-11-21"), parse("/sys/fs/pstore", "console-ramoops-0", "2026-11-21")
    (None, None)
    """
    day = _day(name) if place == "/var/crash" else _stored_day(name)
    if day is None and (place == "/var/crash" or not name.startswith("dmesg")):
        return None
    now = _date(today)
    return KernelDump(path=f"{place}/{name}", age_days=now - day if now is not None and day else None)


def _stored_day(name: str) -> int | None:
    """pstore's number of a record holds the second: ``second part count`` of EFI (drivers/firmware/efi/efi-pstore.c), the upper half of
    ERST's (cper_next_record_id); systemd-pstore makes a directory of EFI's second."""
    found = re.fullmatch(r"(?:dmesg-([a-z_]+)-)?(\d{10,20})(?:\.\w+)*", name)
    if found is None:
        return None
    number = int(found[2])
    for second in (number, number // 100_000, number >> 32):
        if 1_000_000_000 <= second < 5_000_000_000:
            return second // 86_400
    return None


def _day(name: str) -> int | None:
    """kdump's directory: ``202611201230`` (Debian), ``ADDRESS-2026-11-20-12:30:05`` (RHEL), ``2026-11-20-12:30`` (SLES)."""
    found = re.fullmatch(r"(20\d\d)(\d\d)(\d\d)\d{4}", name) or re.fullmatch(
        r"(?:\S+-)?(20\d\d)-(\d\d)-(\d\d)-\d\d[:-]\d\d(?:[:-]\d\d)?", name
    )
    return _date("-".join(found.groups())) if found else None


def _date(text: str) -> int | None:
    """Days since 1970 of ``2026-11-20``."""
    import datetime

    try:
        return datetime.date.fromisoformat(text).toordinal() - datetime.date(1970, 1, 1).toordinal()
    except ValueError:
        return None
