"""What torch.compile has kept from before: training takes it, whatever this test compiles."""

from __future__ import annotations

import contextlib
import os
import stat
import struct
import time
from typing import List, Optional

from torchtune_sys.smoke.worker.context import StageFailed

OWN_FOLDER = "smoke-"
"""How the folders of smoke tests begin that compile cold."""
_BEING_WRITTEN_S = 30.0


def kept_code_is_whole(wished: Optional[str]) -> None:
    """Training takes what was compiled before from its own cache, which the cold cache of this stage would hide: a file that ends in the
    middle (a full disk, a killed job) breaks it. The end of an ELF file is its table of sections (elf(5))."""
    place = wished or _own_default_cache()
    cut = _cut_off(place)
    if cut:
        seen = "%d compiled file(s) in the cache of torch.compile are cut off, such as %s" % (len(cut), cut[0])
        raise StageFailed("compile-cache-damaged", seen, "remove %s: it is made anew" % place)


def _cut_off(place: str) -> List[str]:
    """Return the files that end in the middle, but for those of smoke tests: they have a folder of their own each, which no training reads."""
    found: List[str] = []
    for folder, inner, names in os.walk(place) if place else ():
        if folder == place:
            inner[:] = [name for name in inner if not name.startswith(OWN_FOLDER)]
        for name in names:
            if name.endswith((".so", ".cubin")) and not _is_whole_elf(os.path.join(folder, name)):
                found.append(os.path.join(folder, name))
    return found


def _is_whole_elf(path: str) -> bool:
    """Also where it cannot be read, or has just gone: another process may be at work there."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode) or time.time() - info.st_mtime < _BEING_WRITTEN_S:
                return True
            head, size = file.read(64), info.st_size
    except OSError:
        return True
    if head[:5] != b"\x7fELF\x02":
        return size > 0 and head[:4] == b"\x7fELF"
    sections, (each, count) = struct.unpack_from("=Q", head, 40)[0], struct.unpack_from("=HH", head, 58)
    return bool(sections + each * count <= size)


def _own_default_cache() -> str:
    """Return the cache that nobody named, in /tmp, where anybody could have made it first: "" for one of another user's, whatever lies there."""
    place = default_cache()
    with contextlib.suppress(OSError):
        return place if os.lstat(place).st_uid == os.geteuid() else ""
    return ""


def default_cache() -> str:
    with contextlib.suppress(Exception):  # a user without a name: the stage says so later
        from torch._inductor.runtime.cache_dir_utils import default_cache_dir

        return str(default_cache_dir())
    return ""
