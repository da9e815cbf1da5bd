"""Resolve each CUDA library that torch needs as the dynamic loader would, without loading anything.

It follows _dl_map_object in elf/dl-load.c of glibc for what torch/__init__.py does: libtorch_global_deps.so first, its wheels'
libraries by their full path (some releases always, the others after a failure), then torch._C. ``torch_loader.py`` says what
torch asks for; here is how an answer is found.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from torchtune_sys.formats.elf import Cached, Elf
from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model import codec
from torchtune_sys.model.values import Missing, Why, known
from torchtune_sys.probes.driver.files import DEFAULT_DIRECTORIES

CUDA = (
    "libcuda", "libcublas", "libcudnn", "libcufft", "libcufile", "libcupti", "libcurand", "libcusolver", "libcusparse", "libnv", "libnccl",
)  # fmt: skip
FOLLOWED = (*CUDA, "libtorch", "libc10", "libcaffe2")
"""Nothing else that torch needs brings a CUDA library with it."""
_MOST = 200
"""Objects; a torch of today loads about 30."""
_CACHE_FLAGS = {"64:62": 0x303, "64:183": 0xA03, "64:21": 0x503, "64:243": 0x1003}
"""What ld.so.cache marks libraries with, by class and machine (dl-cache.h and ldconfig.h below sysdeps of glibc)."""


class Loaded(msgspec.Struct):
    """An object of the process, as a link map."""

    path: str
    elf: Elf
    loader: Loaded | None
    names: set[str]
    how: str
    asked_by: str

    def expand(self, text: str) -> list[str]:
        """Return the directories of a DT_RPATH or DT_RUNPATH with $ORIGIN set in; what holds another token is left out."""
        origin = self.path.rpartition("/")[0]
        parts = (part.replace("${ORIGIN}", origin).replace("$ORIGIN", origin) for part in text.split(":")[:500])
        return [part for part in parts if part.startswith("/") and "$" not in part]


class LoadingProcess:
    """A process that loads shared objects, in one namespace, as glibc does."""

    def __init__(self, host: Host, executable: str, env: dict[str, str], here: str = "") -> None:
        self._host = host
        self._names: dict[str, frozenset[str]] = {}
        self._cache: list[Cached] | None = None
        self.loaded: list[Loaded] = []
        self.missing: dict[str, str] = {}
        """Names that were not found, and who asked for them."""
        self.unsure: Missing | None = None
        """The first place that could not be looked at: from there on the prediction may be wrong."""
        elf = self._dynamic(executable)
        self._main = Loaded(path=executable, elf=elf or Elf(kind=""), loader=None, names=set(), how="", asked_by="")
        self._environment = search_list(env.get("LD_LIBRARY_PATH", ""), here, executable.rpartition("/")[0])
        self._preload(env.get("LD_PRELOAD", ""), "LD_PRELOAD")
        listed = host.text("/etc/ld.so.preload")
        self._preload(listed if isinstance(listed, str) else "", "/etc/ld.so.preload")

    def _preload(self, names: str, how: str) -> None:
        for name in names.replace(":", " ").split()[:50]:
            if name.rpartition("/")[2].startswith(FOLLOWED):
                self.open(name, how)
        self.missing.clear()  # ld.so says so and goes on

    def open(self, name: str, how: str = "dlopen", *, partly: bool = False) -> bool:
        """Load as dlopen(3) does: the object and, breadth first, what it needs; all or nothing, unless ``partly``."""
        first = place = len(self.loaded)
        found = self._request(name, self._main, how) is not None
        while place < min(len(self.loaded), _MOST):
            item = self.loaded[place]
            for needed in item.elf.needed:
                if needed.startswith(FOLLOWED) and self._request(needed, item) is None:
                    found = False
            place += 1
        if not found and not partly:
            del self.loaded[first:]
        return found

    def find(self, name: str) -> Loaded | None:
        """Find a library: an object is known by each name it was asked for, and by its DT_SONAME: no second file is looked for."""
        return next((item for item in self.loaded if name in item.names), None)

    def _request(self, name: str, loader: Loaded, how: str = "") -> Loaded | None:
        found = self.find(name)
        if found is not None:
            found.names.add(name)
            return found
        asked_by = "" if loader is self._main else loader.path
        places = [(name, how)] if "/" in name else self._places(name, loader)
        for path, source in places:
            elf = self._dynamic(path)
            if elf is None:
                continue  # a broken link
            if not elf.kind:
                break  # no ELF file: "file too short", and no other is tried
            if elf.kind != (self._main.elf.kind or elf.kind):
                continue  # another machine's file is passed by
            names = {name, path, elf.soname} - {""}
            item = Loaded(path=path, elf=elf, loader=loader, names=names, how=source, asked_by=asked_by)
            self.loaded.append(item)
            return item
        self.missing.setdefault(name, asked_by)
        return None

    def would_find(self, name: str, loader: Loaded) -> None:
        """Load what ``loader`` opens by name while the program runs, if it is there."""
        if self._request(name, loader) is None:
            self.missing.pop(name, None)

    def _places(self, name: str, loader: Loaded) -> Iterator[tuple[str, str]]:
        for directories, source in self._search(loader):
            for directory in directories:
                if name in self.listed(directory):
                    yield f"{directory.rstrip('/')}/{name}", source
        if not loader.elf.no_default:
            yield from ((path, "ld.so.cache") for path in self._cached(name))
            # not listed: they hold thousands of names, and hardly ever one of these
            yield from ((f"{directory}/{name}", "default directory") for directory in DEFAULT_DIRECTORIES)

    def _search(self, loader: Loaded) -> Iterator[tuple[list[str], str]]:
        if not loader.elf.runpath:
            above: Loaded | None = loader
            while above is not None:  # DT_RPATH is inherited from what caused the load, DT_RUNPATH is not
                yield above.expand(above.elf.rpath), "DT_RPATH"
                above = above.loader
        yield self._environment, "LD_LIBRARY_PATH"
        yield loader.expand(loader.elf.runpath), "DT_RUNPATH"

    def listed(self, directory: str) -> frozenset[str]:
        if directory not in self._names:
            found = self._host.names(directory)
            self._doubt(found)
            self._names[directory] = frozenset(known(found, ()))
        return self._names[directory]

    def _doubt(self, found: object) -> None:
        if isinstance(found, Missing) and found.why not in (Why.ABSENT, Why.UNPARSED) and self.unsure is None:
            self.unsure = found

    def _cached(self, name: str) -> list[str]:
        if self._cache is None:
            answer = self._host.ask(queries.LOADER_CACHE)
            self._doubt(answer)
            self._cache = known(codec.as_fact(answer, list[Cached], queries.LOADER_CACHE), [])
        flags = _CACHE_FLAGS.get(self._main.elf.kind, 0)
        fitting = [entry for entry in self._cache if entry.name == name and flags in (0, entry.flags)]
        return [entry.path for entry in sorted(fitting, key=lambda entry: bool(entry.level))]

    def _dynamic(self, path: str) -> Elf | None:
        answer = self._host.ask(f"{queries.DYNAMIC}:{path}")
        self._doubt(answer)
        elf = codec.as_fact(answer, Elf, path)
        if isinstance(elf, Missing):
            return Elf(kind="") if elf.why is Why.UNPARSED else None
        return elf


def search_list(text: str, here: str, origin: str) -> list[str]:
    """Return the directories of LD_LIBRARY_PATH in the loader's eyes; an empty part is the working directory (ld.so(8)).

    >>> search_list("/opt/x/lib::$ORIGIN/../lib;rel", "/home/u", "/opt/py/bin")
    ['/opt/x/lib', '/home/u', '/opt/py/bin/../lib', '/home/u/rel']
    >>> search_list("", "/home/u", "/opt/py/bin")
    []
    """
    if not text:
        return []
    parts = text.replace(";", ":").replace("${ORIGIN}", origin).replace("$ORIGIN", origin).split(":")[:500]
    whole = [part if part.startswith("/") else f"{here}/{part}".rstrip("/") for part in parts]
    return [part for part in dict.fromkeys(whole) if part.startswith("/") and "$" not in part]
