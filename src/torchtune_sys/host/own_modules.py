"""Find the tool's own modules where they must lie: in the package that they belong to, with their byte code below ``__pycache__``.

``check`` loads some 340 modules. For each Python asks several finders, looks for five kinds of files and asks twice for the source: a fifth of what
loading takes. What is not as usual (no byte code, or that of another source, place or Python) is left to Python's own way.
"""

from __future__ import annotations

import marshal
import os
import sys
from _frozen_importlib import ModuleSpec
from _frozen_importlib_external import MAGIC_NUMBER, SourceFileLoader
from collections.abc import Sequence
from types import CodeType

_BEGINNING = MAGIC_NUMBER + bytes(4)
"""Of byte code that is valid as long as its source has the time and size that follow (PEP 552)."""
_LARGEST = 1 << 16
"""Bytes of byte code that are read, at once; a larger one is left to Python's own way."""


def find() -> None:
    """From now on find modules so, where byte code lies as usual."""
    if not sys.flags.optimize and sys.pycache_prefix is None:
        sys.meta_path.insert(0, _Finder)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, _target: object = None) -> ModuleSpec | None:
        if path is None or not name.startswith("torchtune_sys."):
            return None
        folder, last = path[0], name.rpartition(".")[2]
        for place, file in ((folder, last), (f"{folder}/{last}", "__init__")):
            try:
                source = os.stat(f"{place}/{file}.py")
            except OSError:
                continue
            loader = _Loader(name, f"{place}/{file}.py")
            loader.source, loader.cached = source, f"{place}/__pycache__/{file}.{sys.implementation.cache_tag}.pyc"
            found = ModuleSpec(name, loader, origin=loader.path, is_package=file != last)
            found.has_location, found.cached = True, loader.cached
            if found.submodule_search_locations is not None:
                found.submodule_search_locations.append(place)
            return found
        return None


class _Loader(SourceFileLoader):
    source: os.stat_result
    cached: str

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the byte code of the module; see :class:`importlib.abc.InspectLoader`."""
        try:
            file = os.open(self.cached, os.O_RDONLY | os.O_CLOEXEC)
            try:
                data = os.read(file, _LARGEST)
            finally:
                os.close(file)
        except OSError:
            data = b""
        made_of = (int(self.source.st_mtime), self.source.st_size)
        if len(data) < _LARGEST and data[:16] == _BEGINNING + b"".join(
            (number & 0xFFFFFFFF).to_bytes(4, "little") for number in made_of
        ):
            code: CodeType = marshal.loads(memoryview(data)[16:])
            if code.co_filename == self.path:
                return code
        return super().get_code(fullname)
