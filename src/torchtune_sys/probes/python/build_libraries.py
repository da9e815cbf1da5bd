"""Find what Triton and DeepSpeed need to build: the driver's library for the linker, and operators that are built already."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.python import Distribution
from torchtune_sys.model.values import Missing, Why, fact, need
from torchtune_sys.model.version import version
from torchtune_sys.probes.driver.files import DEFAULT_DIRECTORIES


def linkable(host: Host, env: Mapping[str, str], triton: Distribution) -> Fact[tuple[str, ...]]:
    """Return the files libcuda.so and libcuda.so.1 that the linker sees when this Triton calls it; empty where Triton finds no directory.

    Source: libcuda_dirs in triton/backends/nvidia/driver.py (triton/common/build.py up to 2.3). Without a cache ``ldconfig -p``
    ends with status 1 (print_cache in elf/cache.c of glibc), which Triton takes for an error before it looks at LD_LIBRARY_PATH.
    """
    release = version(triton.version)
    wanted = "libcuda.so.1" if release >= (3,) else "libcuda.so"
    named = env.get("TRITON_LIBCUDA_PATH", "")
    if named and release >= (2, 2):
        folders = [named]
    else:
        answer = host.ask(queries.LOADER_CACHE)
        if isinstance(answer, Missing):
            return () if answer.why is Why.ABSENT else answer
        found = cached(answer, wanted)
        folders = [path.rpartition("/")[0] for path in found]
        if not folders:
            folders = [folder for folder in env.get("LD_LIBRARY_PATH", "").split(":")[:64] if _there(host, folder, wanted)]
        if not any(_there(host, folder, wanted) for folder in folders):
            return ()
    # gcc adds LIBRARY_PATH and its own directories to those that -L names
    folders += [*env.get("LIBRARY_PATH", "").split(":")[:64], *DEFAULT_DIRECTORIES, "/usr/local/lib", "/usr/local/lib64"]
    places = [folder.rstrip("/") for folder in dict.fromkeys(folders) if folder.startswith("/")]
    files = [f"{place}/{name}" for place in places for name in ("libcuda.so", "libcuda.so.1") if _there(host, place, name)]
    return tuple(files)


def _there(host: Host, folder: str, name: str) -> bool:
    return folder.startswith("/") and host.exists(f"{folder.rstrip('/')}/{name}") is True


def cached(answer: object, wanted: str) -> list[str]:
    """Return the paths of entries whose line in ``ldconfig -p`` holds ``wanted``, as Triton searches it.

    >>> cached([{"name": "libcuda.so.1", "path": "/usr/lib64/libcuda.so.1", "flags": 771}], "libcuda.so")
    ['/usr/lib64/libcuda.so.1']
    """
    entries = answer if isinstance(answer, (list, tuple)) else ()
    pairs = [(entry.get("name"), entry.get("path")) for entry in entries if isinstance(entry, dict)]
    return [path for name, path in pairs if isinstance(name, str) and isinstance(path, str) and wanted in name]


def deepspeed_operators(host: Host, deepspeed: Distribution) -> Fact[bool]:
    """Return whether DeepSpeed was installed with some of its operators compiled (DS_BUILD_OPS); setup.py writes down which."""
    path = f"{deepspeed.location}/deepspeed/git_version_info_installed.py"
    text = host.text(path)
    if isinstance(text, Missing):
        return text if text.why is not Why.ABSENT else Missing(Why.UNPARSED, path, "no list of its operators")
    return parse_operators(text)


@fact
def bitsandbytes_builds(host: Host, package: Distribution) -> Fact[tuple[str, ...]]:
    """Return the CUDA versions of the libraries that bitsandbytes chooses from (get_cuda_bnb_library_path in its cextension.py)."""
    names = need(host.names(f"{package.location}/bitsandbytes"))
    found = (re.match(r"libbitsandbytes_cuda(\d{2,4})(?:_nocublaslt)?\.so$", name) for name in names)
    return tuple(sorted({match[1] for match in found if match}))


def parse_operators(text: str) -> bool:
    """Return whether DeepSpeed was installed with operators that were built in advance (git_version_info_installed.py).

    >>> parse_operators("version='0.15.4'\\ninstalled_ops={'async_io': False, 'fused_adam': True}\\n")
    True
    """
    line = next((line for line in text.splitlines() if line.startswith("installed_ops")), "")
    return "True" in line
