"""A recorded /proc and /sys in a tar archive, held in memory and never unpacked."""

from __future__ import annotations

import posixpath

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.base import TEXT_LIMIT, Stat
from torchtune_sys.host.input.limits import DEPTH_LIMIT, FILE_LIMIT, MEMBER_LIMIT, NAME_LIMIT, NAMES_LIMIT
from torchtune_sys.host.input.reading import Source
from torchtune_sys.host.input.tarball import ArchiveMember, members
from torchtune_sys.host.tree import TreeHost, TreeStore, called, find_prefix
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_TYPE_BITS = {
    "file": 0o100000,
    "hard": 0o100000,
    "dir": 0o040000,
    "link": 0o120000,
    "char": 0o020000,
    "block": 0o060000,
    "other": 0,
}


class TarStore(TreeStore):
    """The members of an archive. The last one of a name counts, as when unpacking."""

    def __init__(self) -> None:
        self._prefix = ""
        self._size = 0
        self.held = 0
        """Bytes of all contents."""
        self._members: dict[str, ArchiveMember] = {}
        self._names: dict[str, set[str]] = {"/": set()}

    def look_below(self, prefix: str) -> None:
        """Take every later place as one below this directory of the archive."""
        self._prefix = prefix

    def add(self, member: ArchiveMember) -> None:
        if len(member.name) > NAME_LIMIT or member.name.count("/") > DEPTH_LIMIT:
            raise ValueError(f"a name of {len(member.name):,} characters, {member.name.count('/'):,} directories deep")
        place = _place(member.name)
        if place == "/" or ".." in member.name.split("/"):
            return  # a name that climbs: tar itself refuses to unpack it
        if member.kind == "hard":
            known = self._members.get(_place(member.target))
            if known is None:
                return
            member = known
        self._members[place] = member
        self.held += len(member.content or b"")
        if member.kind == "dir":
            self._names.setdefault(place, set())
        self._hang_in(place)

    def target(self, place: str) -> str | None:
        member = self._members.get(self._prefix + place)
        return member.target if member is not None and member.kind == "link" else None

    def text(self, place: str) -> Fact[str]:
        member = self._members.get(self._key(place))
        if member is None or member.kind != "file":
            found = self.stat(place)
            return found if isinstance(found, Missing) else Missing(Why.FAILED, place, "not a regular file")
        if member.content is None:
            return Missing(Why.UNPARSED, place, f"larger than {TEXT_LIMIT >> 20} MiB")
        return member.content.decode("utf-8", "replace")

    def names(self, place: str) -> Fact[tuple[str, ...]]:
        found = self._names.get(self._key(place))
        if found is None:
            seen = self.stat(place)
            return seen if isinstance(seen, Missing) else Missing(Why.ABSENT, place, "not a directory")
        return tuple(sorted(found))

    def stat(self, place: str) -> Fact[Stat]:
        key = self._key(place)
        member = self._members.get(key)
        if member is not None:
            mode = _TYPE_BITS[member.kind] | member.mode
            return Stat(mode=mode, uid=member.uid, gid=member.gid, size=member.size, special=member.special)
        if key in self._names:
            return Stat(mode=0o040755, uid=0, gid=0, size=0)
        return Missing(Why.ABSENT, place, "not in the archive")

    def _key(self, place: str) -> str:
        return (self._prefix + place).rstrip("/") or "/"

    def _hang_in(self, place: str) -> None:
        while place != "/":
            parent, _, name = place.rpartition("/")
            known = self._names.setdefault(parent or "/", set())
            if name in known:
                return
            self._size += len(place)
            if self._size > NAMES_LIMIT:
                raise ValueError(f"names of more than {NAMES_LIMIT:,} characters in all")
            known.add(name)
            place = parent or "/"


def _place(name: str) -> str:
    """
    >>> _place("./host/proc//cpuinfo"), _place("/proc/"), _place(".")
    ('/host/proc/cpuinfo', '/proc', '/')
    """
    return posixpath.normpath("/" + name.lstrip("/"))


def archive(source: Source) -> TreeHost:
    """Return the host in a (decompressed) tar archive. Raises UnreadableInput."""
    store = TarStore()
    count = 0
    try:
        for member in members(source):
            count += 1
            if count > MEMBER_LIMIT:
                raise UnreadableInput(
                    f"{source.name}: has more than {MEMBER_LIMIT:,} entries", "give a recording of /proc and /sys only"
                )
            store.add(member)
            if store.held > FILE_LIMIT:
                raise UnreadableInput(
                    f"{source.name}: its files hold more than {FILE_LIMIT >> 20} MiB", "give a recording of /proc and /sys only"
                )
    except ValueError as error:
        raise UnreadableInput(
            f"{source.name}: a damaged or truncated archive: {error}, after {count} entries", "copy it again"
        ) from None
    prefix = find_prefix(store, source.name)
    store.look_below(prefix)
    return TreeHost(store, called(posixpath.basename(source.name), prefix), lambda _place: Why.NOT_RECORDED)
