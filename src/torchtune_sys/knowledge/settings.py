"""What is known of system settings: the kernel's default, who recommends what, why, and with which reservations."""

from __future__ import annotations

import msgspec

from torchtune_sys.knowledge.tables import rows


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table; every column is text as its source has it."""

    setting: str
    kernel_default: str
    values_seen: str
    who_recommends: str
    why: str
    caveat: str
    source: str
    confidence: str
    """``high`` (primary source read), ``medium`` or ``low`` (from memory)."""


def settings() -> tuple[Known, ...]:
    return tuple(Known(**row) for row in rows("system_settings"))


def about(key: str) -> Known | None:
    """The row for a key such as ``vm.swappiness``, ``net.core.wmem_max`` or ``net.ipv4.conf.eth0.rp_filter``; None where there is none.

    >>> found = about("vm.swappiness")
    >>> found.kernel_default if found else ""
    '60 (range 0-200 since 5.8)'
    """
    return next((row for row in settings() if key in names(row.setting) or _rail(key) in names(row.setting)), None)


def names(setting: str) -> tuple[str, ...]:
    """The keys that a row is about: several share a prefix, as people write them.

    >>> names("net.core.rmem_max / wmem_max")
    ('net.core.rmem_max', 'net.core.wmem_max')
    >>> names("net.core.default_qdisc / tcp_congestion_control"), names("/dev/shm size")
    (('net.core.default_qdisc', 'net.ipv4.tcp_congestion_control'), ('/dev/shm size',))
    >>> names("kernel.shmmax/shmall")
    ('kernel.shmmax', 'kernel.shmall')
    """
    if setting.startswith("/"):
        return (setting,)
    first, *others = (part.strip() for part in setting.split("/"))
    found = [first]
    for other in others:
        if other.startswith("tcp_"):
            found.append(f"net.ipv4.{other}")
        elif "." in other:
            found.append(other)
        else:
            found.append(f"{first.rpartition('.')[0]}.{other}")
    return tuple(found)


def _rail(key: str) -> str:
    parts = key.split(".")
    return ".".join([*parts[:3], "<rail>", parts[-1]]) if key.startswith("net.ipv4.conf.") and len(parts) == 5 else key
