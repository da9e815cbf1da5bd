"""The kernel arguments of the next boot, where entries of the Boot Loader Specification hold them (Fedora, RHEL 8 on, ostree).

Source: UAPI Boot Loader Specification (type 1, ``options``); RHEL 8 keeps them in grubenv, as ``kernelopts``.
"""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.host.base import Host
from torchtune_sys.model.values import Missing

_ENTRIES = "/boot/loader/entries"
_MOST = 64


def probe(host: Host) -> tuple[tuple[str, ...], ...]:
    """Return the kernel's arguments by boot entry, rescue systems left out; empty where there are none, or this user may not read them."""
    names = host.names(_ENTRIES)
    if isinstance(names, Missing):
        return ()
    wanted = [name for name in names if name.endswith(".conf") and "-rescue" not in name]
    texts = [host.text(f"{_ENTRIES}/{name}") for name in wanted[:_MOST]]
    shared = host.text("/boot/grub2/grubenv") if any("$kernelopts" in text for text in texts if isinstance(text, str)) else ""
    return tuple(
        tuple(parse_options(text, shared if isinstance(shared, str) else "")) for text in texts if not isinstance(text, Missing)
    )


def parse_options(text: str, grubenv: str = "") -> Iterator[str]:
    r"""Yield the arguments of one entry.

    >>> list(parse_options("title x\noptions root=/dev/sda1 ro\noptions $tuned_params quiet\n"))
    ['root=/dev/sda1', 'ro', 'quiet']
    >>> list(parse_options("options $kernelopts", "# GRUB Environment Block\nkernelopts=root=/dev/sda1 ro\n"))
    ['root=/dev/sda1', 'ro']
    """
    shared = [
        word for known in grubenv.split("\n") if known.startswith("kernelopts=") for word in known.partition("=")[2].split()
    ]
    for line in text.split("\n"):
        keyword, _, rest = line.strip().partition(" ")
        for word in rest.split() if keyword == "options" else ():
            if word == "$kernelopts":
                yield from shared
                shared = []  # the same words again say nothing new, and a few bytes could stand for many
            elif not word.startswith("$"):
                yield word
