"""A recorded host: a JSON file, which may extend others in the same folder."""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Mapping
from typing import Any

import msgspec

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.base import PATH_MAX, TEXT_LIMIT, Host, Output, Space, Stat, follow
from torchtune_sys.host.input.limits import EXTENDED_LIMIT, RECORDING_LIMIT, VALUE_LIMIT, values_in
from torchtune_sys.host.input.reading import STANDARD_INPUT
from torchtune_sys.model import codec
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded

SCHEMA = "torchtune-sys/recording/1"
SECTIONS = ("files", "links", "dirs", "stats", "spaces", "commands", "env", "answers")


class RecordedHost(Host):
    """Answers from the sections of a recording.

    ``files``: path → text, list of lines, or ``{"error": why}``; ``links``: path → target; ``dirs``: path → names (where not
    given, derived from files and links); ``stats``, ``spaces``: path → fields; ``commands``: "argv joined by blanks" → ``{"rc",
    "stdout"}`` or error; ``env``: name → value; ``answers``: question → answer or ``{"error": why}`` (so also ``environment``, for one that could not be read). With ``"complete": true``
    (the default) what is not listed is absent on that host; otherwise it was not recorded.
    """

    def __init__(self, recording: Mapping[str, Any], origin: str) -> None:
        self.origin = origin
        self._complete = bool(recording.get("complete", True))
        self._sections: dict[str, dict[str, Any]] = {name: dict(recording.get(name) or {}) for name in SECTIONS}
        self._has_env = "env" in recording or self._complete
        self._children = _children(self._sections)
        self._folders: dict[str, str] = {}
        self.intent: dict[str, Any] = dict(recording.get("intent") or {})
        """What the person said about the job when the host was recorded: the fields of Intent."""

    @classmethod
    def load(cls, path: str) -> RecordedHost:
        return cls(load_recording(path), f"recording {os.path.basename(path)}")

    def text(self, path: str) -> Fact[str]:
        found = self._get("files", self._resolve(path), path)
        if isinstance(found, Missing):
            return found
        if isinstance(found, dict):
            return Missing(Why.UNPARSED, path, "the recording is wrong here: neither text nor an error")
        text = "\n".join(found) + "\n" if isinstance(found, list) else str(found)
        return Missing(Why.UNPARSED, path, f"larger than {TEXT_LIMIT >> 20} MiB") if len(text) > TEXT_LIMIT else text

    def names(self, path: str) -> Fact[tuple[str, ...]]:
        place = self._resolve(path)
        if place in self._sections["dirs"]:
            found = self._get("dirs", place, path)
            return found if isinstance(found, Missing) else tuple(sorted(found))
        if place in self._children and self._complete:
            return tuple(sorted(self._children[place]))
        return self._nothing(path, place=place)

    def link(self, path: str) -> Fact[str]:
        parent, name = posixpath.split(path)
        found = self._get("links", posixpath.join(self._resolve(parent), name), path)
        return found if isinstance(found, Missing) else str(found)

    def real(self, path: str) -> Fact[str]:
        place = self._resolve(path)
        found = self.stat(path)
        return found if isinstance(found, Missing) else place

    def stat(self, path: str) -> Fact[Stat]:
        place = self._resolve(path)
        if not place:  # as by the kernel
            return Missing(Why.FAILED, path[:PATH_MAX], os.strerror(errno.ENAMETOOLONG if len(path) > PATH_MAX else errno.ELOOP))
        if place in self._sections["stats"]:
            found = self._get("stats", place, path)
            return codec.as_fact(found, Stat, path, _WRONG)
        listing = self._get("dirs", place, path) if place in self._sections["dirs"] else None
        if absent_or_unrecorded(listing):
            return listing
        if place in self._children or listing is not None:
            return Stat(mode=0o040755, uid=0, gid=0, size=0)
        if place in self._sections["files"]:
            content = self.text(place)
            if absent_or_unrecorded(content):
                return content
            return Stat(mode=0o100644, uid=0, gid=0, size=0 if isinstance(content, Missing) else len(content))
        return self._nothing(path, place=place)

    def space(self, path: str) -> Fact[Space]:
        return codec.as_fact(self._get("spaces", path, path), Space, path, _WRONG)

    def run(self, argv: tuple[str, ...], timeout_s: float = 10.0) -> Fact[Output]:
        found = self._get("commands", " ".join(argv), argv[0], Why.NO_TOOL)
        return codec.as_fact(found, Output, argv[0], _WRONG)

    def env(self) -> Fact[dict[str, str]]:
        refusal = self._get("answers", "environment", "environment") if "environment" in self._sections["answers"] else None
        if isinstance(refusal, Missing):
            return refusal
        if not self._has_env:
            return self._nothing("environment")
        return {name: str(value) for name, value in self._sections["env"].items()}

    def ask(self, question: str, timeout_s: float = 10.0) -> Fact[Any]:
        return self._get("answers", question, question)

    def _get(self, section: str, key: str, source: str, nothing: Why = Why.ABSENT) -> Any:
        if key not in self._sections[section]:
            return self._nothing(source, nothing, key if section in ("files", "links") else "")
        value = self._sections[section][key]
        if isinstance(value, dict) and _tells_why(value):
            return Missing(Why(value["error"]), value.get("source", source), value.get("detail", ""), value.get("remedy", ""))
        return value

    def _nothing(self, source: str, why: Why = Why.ABSENT, place: str = "") -> Missing:
        """``place``: where a file would lie; it is absent if its directory was listed without it."""
        if self._complete:
            return Missing(why, source)
        parent, _, name = place.rpartition("/")
        listing = self._sections["dirs"].get(parent or "/") if name else None
        if isinstance(listing, list) and name not in listing:
            return Missing(Why.ABSENT, source)
        return Missing(Why.NOT_RECORDED, source, "not in the recording")

    def _resolve(self, path: str) -> str:
        """Return where ``path`` leads, as :func:`follow` does; where each folder leads is kept, since many files lie in the same."""
        folder, _, name = path.rpartition("/")
        target_of = self._sections["links"].get
        if name in ("", ".", "..") or len(path) > PATH_MAX:  # which follow refuses
            return follow(path, target_of)
        if folder not in self._folders:
            self._folders[folder] = follow(folder, target_of)
        lies_in = self._folders[folder]
        place = f"{lies_in.rstrip('/')}/{name}"
        return follow(path, target_of) if isinstance(target_of(place), str) else place if lies_in else ""


_WHYS = frozenset(why.value for why in Why)
_ERROR_KEYS = frozenset(("error", "source", "detail", "remedy"))
_WRONG = "the recording is wrong here: "


def _tells_why(value: Mapping[str, Any]) -> bool:
    """Whether a value is the reason why there is none; its words are texts, whatever a recording holds elsewhere."""
    return value.keys() <= _ERROR_KEYS and all(isinstance(word, str) for word in value.values()) and value.get("error") in _WHYS


def load_recording(path: str) -> dict[str, Any]:
    """Read a recording with what it extends. Raises UnreadableInput, naming the file."""
    from torchtune_sys.host.input.reading import read_input

    return parse_recording(read_input(path), path, path)


def parse_recording(data: bytes, name: str, path: str | None) -> dict[str, Any]:
    """Read the recording in ``data`` with what it extends. Raises UnreadableInput.

    ``path``: the file that holds it; None for standard input, which has no folder that another file could lie in.
    """
    return _Chain(path).whole(data, name, ())


def recorded_document(data: bytes, name: str, origin: str) -> RecordedHost:
    """Return the host of a recording that was read as one document among others. Raises UnreadableInput.

    ``name``: its file; where it is none (standard input, a line, an archive's member), nothing lies beside it that it could extend.
    """
    path = name if name != STANDARD_INPUT and os.path.isfile(name) else None
    return RecordedHost(parse_recording(data, name, path), origin)


class _Chain:
    """The files that one recording is made of. A recording may come from a stranger: it names nothing but regular files
    beside itself, and each is read once."""

    def __init__(self, path: str | None) -> None:
        self._folder = None if path is None else os.path.dirname(path)
        self._read = set() if path is None else {os.path.basename(path)}

    def whole(self, data: bytes, name: str, above: tuple[str, ...]) -> dict[str, Any]:
        """``above``: the names of the files that extend this one, the first one first."""
        found = _parsed(data, name)
        bases = found.pop("extends", None) or []
        bases = [bases] if isinstance(bases, str) else bases
        if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
            raise UnreadableInput(f'{name}: "extends" names no files', "give a file name or a list of them")
        if not above and not bases and not any(key in found for key in (*SECTIONS, "schema")):
            raise UnreadableInput(f"{name}: this JSON is not a recording of a host", "make one with: torchtune-sys record")
        _check(found, name)
        result: dict[str, Any] = {}
        for base in bases:
            result = merged(result, self._extended(base, name, (*above, os.path.basename(name))))
        return merged(result, found)

    def _extended(self, base: str, name: str, above: tuple[str, ...]) -> dict[str, Any]:
        if self._folder is None:
            raise UnreadableInput(f"{name}: a recording that is read from there may extend no file", "name the file with --from")
        if base in ("", ".", "..") or "/" in base or "\0" in base:
            raise UnreadableInput(
                f'{name}: "extends" names {base[:100]!r}: only files in the same directory may be extended',
                "put it beside the recording, and give its name without a directory",
            )
        if base in above:
            chain = " -> ".join((*above[above.index(base) :], base))
            raise UnreadableInput(f"{name}: recordings extend each other in a circle: {chain}", 'break the chain of "extends"')
        if base in self._read:
            return {}
        self._read.add(base)
        if len(self._read) > EXTENDED_LIMIT:
            raise UnreadableInput(f"{name}: is made of more than {EXTENDED_LIMIT} files", "merge them")
        from torchtune_sys.host.input.reading import read_input

        place = os.path.join(self._folder, base)
        return self.whole(read_input(place, plain=True), place, above)


def _parsed(data: bytes, name: str) -> dict[str, Any]:
    data = data.removeprefix(b"\xef\xbb\xbf")
    if len(data) > RECORDING_LIMIT or values_in(data) > VALUE_LIMIT:
        raise UnreadableInput(
            f"{name}: is larger than a recording may be ({RECORDING_LIMIT >> 20} MiB, {VALUE_LIMIT:,} values)",
            "record the host again",
        )
    try:
        found = codec.loads(data)
    except (ValueError, RecursionError) as error:
        words = str(error)
        number = words.rpartition("(byte ")[2].rstrip(")")
        before = data[: natural(number)]
        where = f"line {before.count(10) + 1}, column {len(before) - before.rfind(10)}"
        raise UnreadableInput(f"{name}: not valid JSON: {words}, {where}", "copy it again, or mend it there") from None
    if not isinstance(found, dict):
        raise UnreadableInput(f"{name}: a recording is a JSON object", "make one with: torchtune-sys record")
    return found


def _check(found: Mapping[str, Any], name: str) -> None:
    """Refuse what is not a recording of this version, before anything is concluded from it."""
    schema = found.get("schema", SCHEMA)
    kind, _, number = str(schema).rpartition("/")
    if kind != SCHEMA.rpartition("/")[0]:
        what = kind.rpartition("/")[2]
        raise UnreadableInput(
            f"{name}: is {f'a {what} document' if what else 'something else'} ({schema}), not a recording",
            "make one on the host with: torchtune-sys record",
        )
    if number != SCHEMA.rpartition("/")[2]:
        raise UnreadableInput(f"{name}: has the schema {schema}; this version reads {SCHEMA}", "upgrade torchtune-sys")
    for section, shape in _SHAPES.items():
        try:
            codec.convert(found.get(section) or {}, shape)
        except msgspec.ValidationError as error:
            raise UnreadableInput(f"{name}: {section}: {error}", "mend it, or record the host again") from None


_SHAPES: dict[str, Any] = {
    "files": dict[str, str | list[str] | dict[str, Any] | None],
    "links": dict[str, str | dict[str, Any] | None],
    "dirs": dict[str, list[str] | dict[str, Any] | None],
    "stats": dict[str, dict[str, Any] | None],
    "spaces": dict[str, dict[str, Any] | None],
    "commands": dict[str, dict[str, Any] | None],
    "env": dict[str, str | int | float | bool | None],
    "answers": dict[str, Any],
    "intent": dict[str, Any],
}


def merged(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``overlay`` laid over ``base``; ``null`` deletes an entry."""
    result = dict(base)
    for key, value in overlay.items():
        if key in (*SECTIONS, "intent") and isinstance(value, dict):
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
            folder, _, name = path.rpartition("/")
            if folder in found:  # so the folders above it are there, too
                found[folder].add(name)
                continue
            place = path
            while place != "/" and place:
                parent, _, name = place.rpartition("/")
                parent = parent.rstrip("/")
                names = found.setdefault(parent or "/", set())
                if name in names:
                    break
                names.add(name)
                place = parent
    return found
