"""Record everything that the probes read from a host, so that the rules judge the recording like the host.

How a command makes a recording::

    host = RecordingHost(open_host(from_, root))            # or LiveHost()
    engine.snapshot(host, intent, timeout_s=…)              # the probes ask; the host remembers
    found = pseudonymise(host.to_recording(intent), salt)   # salt: None for a fresh one
    write_atomically(path, codec.dumps(found, indent=1))    # or to standard output

``host.recorded.RecordedHost`` reads it back; its ``intent`` holds what the person said about the job.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from torchtune_sys import __version__
from torchtune_sys.host.base import Host, Output, Space, Stat, follow
from torchtune_sys.host.environment import relevant
from torchtune_sys.host.recorded import SCHEMA
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing

_T = TypeVar("_T")


class RecordingHost(Host):
    """Answers as ``inner`` does and remembers each answer, the refusals too."""

    def __init__(self, inner: Host) -> None:
        self._inner = inner
        self.origin = inner.origin
        self.live = inner.live
        self._seen: dict[str, dict[str, Any]] = {
            name: {} for name in ("text", "names", "link", "real", "stat", "space", "run", "ask", "env")
        }

    def _remember(self, kind: str, key: str, look: Callable[[], Fact[_T]]) -> Fact[_T]:
        found = look()
        self._seen[kind][key] = found
        return found

    def text(self, path: str) -> Fact[str]:
        return self._remember("text", path, lambda: self._inner.text(path))

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        return self._remember("names", path, lambda: self._inner.names(path))

    def link(self, path: str) -> Fact[str]:
        return self._remember("link", path, lambda: self._inner.link(path))

    def real(self, path: str) -> Fact[str]:
        return self._remember("real", path, lambda: self._inner.real(path))

    def stat(self, path: str) -> Fact[Stat]:
        return self._remember("stat", path, lambda: self._inner.stat(path))

    def space(self, path: str) -> Fact[Space]:
        return self._remember("space", path, lambda: self._inner.space(path))

    def run(self, argv: tuple[str, ...], timeout_s: float = 10.0) -> Fact[Output]:
        return self._remember("run", " ".join(argv), lambda: self._inner.run(argv, timeout_s))

    def env(self) -> Fact[dict[str, str]]:
        return self._remember("env", "", self._inner.env)

    def ask(self, question: str, timeout_s: float = 10.0) -> Fact[Any]:
        return self._remember("ask", question, lambda: self._inner.ask(question, timeout_s))

    def to_recording(self, intent: Workload | None = None) -> dict[str, Any]:
        """Return what was asked so far, as a recording (names still in clear: pseudonymise it before it leaves the host).

        ``complete`` is false in it: what nobody asked is not recorded, rather than absent.
        """
        seen = {kind: dict(answers) for kind, answers in self._seen.items()}
        links = self._links([path for kind in ("text", "names", "link", "real", "stat") for path in seen[kind]])
        places = _Places(links)
        env = seen["env"].get("")
        recording: dict[str, Any] = {
            "schema": SCHEMA,
            "tool": {"version": __version__},
            "origin": self.origin,
            "complete": False,
            "files": {places.of(path): _or_error(found, path, _lines) for path, found in seen["text"].items()},
            "links": {
                **links,
                **{places.of_link(path): _or_error(found, path, str) for path, found in seen["link"].items()},
            },
            "dirs": {places.of(path): _or_error(found, path, list) for path, found in seen["names"].items()},
            "stats": self._stats(seen, places),
            "spaces": {path: _or_error(found, path, msgspec.to_builtins) for path, found in seen["space"].items()},
            "commands": {argv: _or_error(found, argv.split(" ")[0], _fields) for argv, found in seen["run"].items()},
            "answers": {question: _or_error(found, question, _same) for question, found in seen["ask"].items()},
        }
        if isinstance(env, Missing):
            recording["answers"]["environment"] = _or_error(env, "environment", _same)
        elif env is not None:
            recording["env"] = relevant(env)
        if intent is not None:
            recording["intent"] = {name: value for name, value in _fields(intent).items() if value}
        return {name: _sorted(value) for name, value in recording.items() if value != {} or name == "env"}

    def _stats(self, seen: Mapping[str, Mapping[str, Any]], places: _Places) -> dict[str, Any]:
        found = {places.of(path): _or_error(answer, path, _fields) for path, answer in seen["stat"].items()}
        for path, answer in seen["real"].items():  # real() is answered from the links and from what exists
            place = places.of(path)
            if place not in found:
                found[place] = _or_error(answer if isinstance(answer, Missing) else self._inner.stat(path), path, _fields)
        return found

    def _links(self, paths: list[str]) -> dict[str, str]:
        """Return the symbolic links that lie on the way to these paths, by the place where they lie."""
        found: dict[str, str] = {}
        looked: set[str] = set()

        def target_of(place: str) -> str | None:
            if place not in looked:
                looked.add(place)
                target = None if place in _OURS else self._inner.link(place)
                if isinstance(target, str):
                    found[place] = target
            return found.get(place)

        for path in paths:
            follow(path, target_of)
        return found


_OURS = frozenset(("/proc/self", "/proc/thread-self"))
"""Links to the process that looked: in a recording they are directories of their own."""


class _Places:
    """Where a path leads, by the recorded links: the key under which a RecordedHost will look."""

    def __init__(self, links: Mapping[str, str]) -> None:
        self._links = links

    def of(self, path: str) -> str:
        return follow(path, self._links.get)

    def of_link(self, path: str) -> str:
        parent, name = posixpath.split(path.rstrip("/"))
        return posixpath.join(self.of(parent), name)


def _or_error(found: Fact[Any], asked: str, encode: Callable[[Any], Any]) -> Any:
    if not isinstance(found, Missing):
        return encode(found)
    entry = {"error": found.why.value}
    if found.source != asked:
        entry["source"] = found.source
    if found.detail:
        entry["detail"] = found.detail
    if found.remedy:
        entry["remedy"] = found.remedy
    return entry


def _lines(text: str) -> str | list[str]:
    """Lines where a file is nothing but lines, since people read recordings and their differences."""
    return text[:-1].split("\n") if text.endswith("\n") and text.count("\n") > 1 else text


def _fields(value: msgspec.Struct) -> dict[str, Any]:
    """Return the fields that differ from their defaults."""
    defaults = dict(zip(reversed(value.__struct_fields__), reversed(value.__struct_defaults__), strict=False))
    return {name: item for name, item in msgspec.to_builtins(value).items() if item != defaults.get(name, _MISSING)}


_MISSING = object()


def _same(value: Any) -> Any:
    return value


def _sorted(value: Any) -> Any:
    return dict(sorted(value.items())) if isinstance(value, dict) else value
