"""Read what the dynamic loader reads: dynamic sections and its cache."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from torchtune_sys.formats import elf
from torchtune_sys.host.base import missing_from
from torchtune_sys.host.regular import NotRegular, open_regular
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

CACHE = "/etc/ld.so.cache"
NAMES = (
    "libcuda",
    "libcublas",
    "libcudnn",
    "libcuf",
    "libcupti",
    "libcurand",
    "libcus",
    "libnv",
    "libnccl",
    "libtorch",
    "libc10",
)
"""The libraries whose way into a training process is followed; a cache holds thousands of others."""
_CACHE_LIMIT = 16 << 20


def dynamic(path: str, _timeout_s: float) -> Fact[Any]:
    """Return the fields of ``model.elf.Elf``; UNPARSED for what is not an ELF file."""
    try:
        handle = open_regular(path)
    except NotRegular as error:
        return Missing(Why.FAILED, path, error.strerror)
    except OSError as error:
        return missing_from(error, path)
    except ValueError:
        return Missing(Why.ABSENT, path, "no file can have this name")
    try:
        found = elf.parse_elf(lambda offset, size: os.pread(handle, size, offset))
        return msgspec.to_builtins(found)
    except OSError as error:
        return missing_from(error, path)
    except (ValueError, OverflowError) as error:
        return Missing(Why.UNPARSED, path, str(error))
    finally:
        os.close(handle)


_MOST_LIBRARIES = 500


def cut_libraries(folder: str, _timeout_s: float) -> Fact[Any]:
    """Return the shared libraries of a directory that end before their headers say, each with its size and the least one."""
    found = []
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in entries if ".so" in entry.name and entry.is_file(follow_symlinks=False))
        for name in names[:_MOST_LIBRARIES]:
            with open(open_regular(os.path.join(folder, name), os.O_NOFOLLOW), "rb") as file:
                size, least = os.fstat(file.fileno()).st_size, elf.least_size(file.read(4096))
            if size < least:
                found.append([name, size, least])
    except OSError as error:
        return missing_from(error, folder)
    except ValueError:
        return Missing(Why.ABSENT, folder, "no directory can have this name")
    return found


def cache(library: str, _timeout_s: float) -> Fact[Any]:
    """Return the entries of ld.so.cache for CUDA libraries, or for one that is named, in its order: fields of ``model.elf.Cached``."""
    try:
        with open(CACHE, "rb") as file:
            data = file.read(_CACHE_LIMIT)
        return [msgspec.to_builtins(entry) for entry in elf.parse_cache(data, (library,) if library else NAMES)]
    except OSError as error:
        return missing_from(error, CACHE)
    except ValueError as error:
        return Missing(Why.UNPARSED, CACHE, str(error))
