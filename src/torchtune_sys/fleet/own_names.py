"""Replace a host's own name in its facts by a placeholder, so that equal hosts have equal facts."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from torchtune_sys.fleet.left_out import INTERFACES_LEFT_OUT
from torchtune_sys.model.facts.network import Interface
from torchtune_sys.model.launchers import JOB_VARIABLES
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known

_UUID = re.compile(
    r"\b[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}\b|\b[0-9A-F]{4}-[0-9A-F]{4}\b(?=$|\s)|\b[0-9a-f]{32}\b"
)
_NAMED_BY_MAC = re.compile(r"\b(?:en|wl|ww|ib)x[0-9a-f]{12}\b")
"""An interface that udev calls so by its hardware address (systemd.net-naming-scheme(7))."""
_MAC = re.compile(r"\b(?:[0-9a-fA-F]{2}[:-]){5}[0-9a-fA-F]{2}\b")
_DISK = re.compile(r"\b(?:nvme\d+n\d+(?:p\d+)?|(?:sd|vd|xvd)[a-z]{1,2}\d*|md\d+(?:p\d+)?|dm-\d+|loop\d+)\b")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}(?:\.\d{1,3}){0,3})(?!\w)")
_PROCESS = re.compile(r"/proc/\d+\b")


class OwnNames(msgspec.Struct, frozen=True):
    words: tuple[tuple[re.Pattern[str], str], ...]
    any_of: re.Pattern[str]
    """Matches nothing where neither they nor an address do."""
    addresses: frozenset[str] = frozenset()
    """Of the host: thousands, where kube-proxy keeps those of services (IPVS), or a file of hosts has them."""
    passing: frozenset[str] = frozenset()
    """Interfaces that come and go."""
    known: dict[str, str] = {}

    def text(self, text: str) -> str:
        found = self.known.get(text)
        if found is None:
            found = self.known[text] = self._replaced(text)
        return found

    def _replaced(self, text: str) -> str:
        if self.any_of.search(text):
            text = _ADDRESS.sub(lambda found: "<address>" if found[0] in self.addresses else found[0], text)
            for pattern, word in self.words:
                text = pattern.sub(word, text)
        return text

    def plain(self, value: Any) -> Any:
        """Return the same in all texts of plain JSON data."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.plain(item) for item in value]
        if isinstance(value, dict):
            return {self.text(key): self.plain(item) for key, item in value.items()}
        return value


def own_names(seen: Snapshot) -> OwnNames:
    """Return the words of this host: its name (if it holds a number or a dot: ``debian`` is no name alone), its addresses, its job; and whatever
    looks like an identifier."""
    found = [
        *((word, "<host>") for word in _host(seen)),
        *((word, "<job>") for word in _job(seen)),
    ]
    exact = tuple(
        (re.compile(rf"(?<![\w.]){re.escape(word)}(?![\w])"), name)
        for word, name in sorted(found, key=lambda item: (-len(item[0]), item[0]))
    )
    places = tuple((re.compile(rf"(?<![\w./]){re.escape(place)}(?=/)"), name) for place, name in _places(seen))
    general = ((_UUID, "<uuid>"), (_MAC, "<mac>"), (_NAMED_BY_MAC, "<by mac>"), (_PROCESS, "/proc/<pid>"), (_DISK, "<disk>"))
    words = (*exact, *places, *general)
    any_of = re.compile("|".join(pattern.pattern for pattern in (_ADDRESS, *(pattern for pattern, _ in words))))
    return OwnNames(words, any_of, frozenset(_addresses(seen)), _passing(seen))


def comes_and_goes(interface: Interface) -> bool:
    return interface.kind == "veth" or INTERFACES_LEFT_OUT.fullmatch(interface.name) is not None


def _passing(seen: Snapshot) -> frozenset[str]:
    found = () if isinstance(seen.network, Missing) else known(seen.network.interfaces, ())
    return frozenset(interface.name for interface in found if comes_and_goes(interface))


def _host(seen: Snapshot) -> set[str]:
    name = known(seen.system.hostname, "") if not isinstance(seen.system, Missing) else ""
    return {part for part in (name, name.partition(".")[0]) if len(part) > 1 and any(sign in "0123456789." for sign in part)}


def _addresses(seen: Snapshot) -> set[str]:
    if isinstance(seen.network, Missing):
        return set()
    own = {address.address for interface in known(seen.network.interfaces, ()) for address in known(interface.addresses, ())}
    found = own | set(known(seen.network.hostname_addresses, ()))
    return {address for address in found if address not in ("::1", "0.0.0.0", "::") and not address.startswith("127.")}


def _job(seen: Snapshot) -> set[str]:
    if isinstance(seen.session, Missing):
        return set()
    env = known(seen.session.env, {})
    return {env[name] for name in JOB_VARIABLES if len(env.get(name, "")) > 2}


def _places(seen: Snapshot) -> list[tuple[str, str]]:
    """Directories below which much lies: told once, where they are a fact themselves. The longest first."""
    python = seen.python
    if isinstance(python, Missing):
        return []
    prefix = known(python.prefix, "")
    torch = "" if isinstance(python.torch, Missing) else python.torch.location
    site = torch.rpartition("/")[0]
    found = [(prefix, "<prefix>"), (site if site.startswith("/") else "", "<packages>")]
    return sorted(((place, name) for place, name in found if place.count("/") > 1), key=lambda item: -len(item[0]))
