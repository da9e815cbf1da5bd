"""A host that was written down: one JSON file, which may extend another."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping
from typing import Any

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.base import Host, Output, Space, Stat
from torchtune_sys.model import codec
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

SCHEMA = "torchtune-sys/recording/1"
SECTIONS = ("files", "links", "dirs", "stats", "spaces", "commands", "env", "answers")


class RecordedHost(Host):
    """Answers from the sections of a recording.

    ``files``: path → text, list of lines, or ``{"error": why}``; ``links``: path → target; ``dirs``: path → names (where not
    given, derived from files and links); ``stats``, ``spaces``: path → fields; ``commands``: "argv joined by blanks" → ``{"rc",
    "stdout"}`` or error; ``env``: name → value; ``answers``: question → answer or ``{"error": why}``. With ``"complete": true``
    (the default) what is not listed is absent on that host; otherwise it was not recorded.
    """

    def __init__(self, recording: Mapping[str, Any], origin: str) -> None:
        self.origin = origin
        self._complete = bool(recording.get("complete", True))
        self._sections: dict[str, dict[str, Any]] = {name: dict(recording.get(name) or {}) for name in SECTIONS}
        self._children = _children(self._sections)

    @classmethod
    def load(cls, path: str) -> RecordedHost:
        return cls(load_recording(path), f"recording {os.path.basename(path)}")

    def text(self, path: str) -> Fact[str]:
        found = self._get("files", self._resolve(path), path)
        if isinstance(found, Missing):
            return found
        return "\n".join(found) + "\n" if isinstance(found, list) else str(found)

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        place = self._resolve(path)
        if place in self._sections["dirs"]:
            found = self._get("dirs", place, path)
            return found if isinstance(found, Missing) else tuple(sorted(found))
        if place in self._children:
            return tuple(sorted(self._children[place]))
        return self._nothing(path)

    def link(self, path: str) -> Fact[str]:
        parent, name = posixpath.split(path)
        found = self._get("links", posixpath.join(self._resolve(parent), name), path)
        return found if isinstance(found, Missing) else str(found)

    def real(self, path: str) -> Fact[str]:
        place = self._resolve(path)
        if any(place in self._sections[name] for name in ("files", "dirs", "stats")) or place in self._children:
            return place
        return self._nothing(path)

    def stat(self, path: str) -> Fact[Stat]:
        place = self._resolve(path)
        if place in self._sections["stats"]:
            found = self._get("stats", place, path)
            return found if isinstance(found, Missing) else Stat(**found)
        if place in self._children or place in self._sections["dirs"]:
            return Stat(mode=0o040755, uid=0, gid=0, size=0)
        if place in self._sections["files"]:
            content = self.text(place)
            if isinstance(content, Missing) and content.why is Why.ABSENT:
                return content
            return Stat(mode=0o100644, uid=0, gid=0, size=0 if isinstance(content, Missing) else len(content))
        return self._nothing(path)

    def space(self, path: str) -> Fact[Space]:
        found = self._get("spaces", path, path)
        return found if isinstance(found, Missing) else Space(**found)

    def run(self, argv: tuple[str, ...], timeout_s: float = 10.0) -> Fact[Output]:
        found = self._get("commands", " ".join(argv), argv[0], Why.NO_TOOL)
        return found if isinstance(found, Missing) else Output(**found)

    def env(self) -> Fact[dict[str, str]]:
        return {name: str(value) for name, value in self._sections["env"].items()}

    def ask(self, question: str, timeout_s: float = 10.0) -> Fact[Any]:
        return self._get("answers", question, question)

    def _get(self, section: str, key: str, source: str, nothing: Why = Why.ABSENT) -> Any:
        if key not in self._sections[section]:
            return self._nothing(source, nothing)
        value = self._sections[section][key]
        if isinstance(value, dict) and "error" in value:
            return Missing(Why(value["error"]), source, value.get("detail", ""), value.get("remedy", ""))
        return value

    def _nothing(self, source: str, why: Why = Why.ABSENT) -> Missing:
        if self._complete:
            return Missing(why, source)
        return Missing(Why.NOT_RECORDED, source, "not in the recording")

    def _resolve(self, path: str) -> str:
        return follow(path, self._sections["links"].get)


def follow(path: str, target_of: Callable[[str], object]) -> str:
    """Where ``path`` leads, component by component, by at most 40 links (as the kernel does). ``target_of`` gives the target
    of the link at a place, or anything but a str where there is none.

    >>> follow("/sys/class/net/eth0/mtu", {"/sys/class/net/eth0": "../../devices/virtual/net/eth0"}.get)
    '/sys/devices/virtual/net/eth0/mtu'
    """
    todo = [part for part in reversed(path.split("/")) if part and part != "."]
    done = ""
    followed = 0
    while todo:
        part = todo.pop()
        if part == "..":
            done = done.rpartition("/")[0]
            continue
        place = f"{done}/{part}"
        target = target_of(place)
        if not isinstance(target, str) or followed >= 40:
            done = place
            continue
        followed += 1
        done = "" if target.startswith("/") else done
        todo.extend(piece for piece in reversed(target.split("/")) if piece and piece != ".")
    return done or "/"


def load_recording(path: str, depth: int = 0) -> dict[str, Any]:
    """Read a recording with what it extends. Raises UnreadableInput, naming the file."""
    if depth > 8:
        raise UnreadableInput(f"{path}: recordings extend each other in a circle", 'break the chain of "extends"')
    try:
        with open(path, "rb") as file:
            found = codec.loads(file.read())
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror}") from None
    except ValueError as error:
        raise UnreadableInput(f"{path}: not valid JSON: {error}") from None
    if not isinstance(found, dict):
        raise UnreadableInput(f"{path}: a recording is a JSON object", "make one with: torchtune-sys record")
    bases = found.pop("extends", None) or []
    result: dict[str, Any] = {}
    for base in [bases] if isinstance(bases, str) else bases:
        result = merged(result, load_recording(os.path.join(os.path.dirname(path), base), depth + 1))
    return merged(result, found)


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """``overlay`` laid over ``base``; ``null`` deletes an entry."""
    result = dict(base)
    for key, value in overlay.items():
        if key in SECTIONS and isinstance(value, dict):
            entries = {**(base.get(key) or {}), **value}
            result[key] = {name: entry for name, entry in entries.items() if entry is not None}
        else:
            result[key] = value
    return result


def _children(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for section in ("files", "links", "dirs", "stats"):
        for path, value in sections[section].items():
            if isinstance(value, dict) and value.get("error") == Why.ABSENT.value:
                continue
            place = path
            while place != "/" and place:
                parent, name = posixpath.split(place)
                if name in found.setdefault(parent or "/", set()):
                    break
                found[parent or "/"].add(name)
                place = parent
    return found
