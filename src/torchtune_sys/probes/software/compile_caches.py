"""Find where torch.compile and Triton keep what they build."""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Iterator, Mapping

from torchtune_sys.formats.mounts import LOCAL, Mount, carrier, carrying
from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.software import CompileCache
from torchtune_sys.model.values import Missing, Why, fact, need
from torchtune_sys.probes.driver.files import allowed
from torchtune_sys.probes.storage.mounts import read_mounts


@fact
def caches(host: Host) -> Fact[tuple[CompileCache, ...]]:
    env = need(host.env())
    mounts = need(read_mounts(host))
    who = host.ask(queries.UID)
    user = who if isinstance(who, dict) else {}
    return tuple(_cache(host, mounts, user, *wanted) for wanted in _wanted(host, env, user))


def _temporary(host: Host, env: Mapping[str, str], user: Mapping[str, object]) -> str:
    """tempfile.gettempdir(): the first directory that is there and can be written; ``""`` for none of the usual ones."""
    named = (env.get(name, "") for name in ("TMPDIR", "TEMP", "TMP"))
    candidates = (place for place in (*named, "/tmp", "/var/tmp") if place.startswith("/"))
    return next((place for place in candidates if host.exists(place) is True and _writable(host, place, user) is not False), "")


def _wanted(host: Host, env: Mapping[str, str], user: Mapping[str, object]) -> Iterator[tuple[str, str, str]]:
    """Purpose, variable and path.

    torch/_inductor/runtime/cache_dir_utils.py: below the temporary directory, named for the user; Triton's kernels of
    torch.compile lie in it too. triton/knobs.py (before 3.4 triton/runtime/cache.py): .triton in TRITON_HOME, else at home.
    """
    inductor = env.get("TORCHINDUCTOR_CACHE_DIR", "")
    if not inductor:
        temporary = _temporary(host, env, user)
        name = next((env[key] for key in ("LOGNAME", "USER", "LNAME", "USERNAME") if env.get(key)), user.get("user") or "")
        inductor = f"{temporary.rstrip('/')}/torchinductor_{name}" if name and temporary else ""
    if inductor.startswith("/"):
        yield "torch.compile", "TORCHINDUCTOR_CACHE_DIR", posixpath.normpath(inductor)
    home = env.get("TRITON_HOME") or env.get("HOME") or user.get("home") or ""
    triton = env.get("TRITON_CACHE_DIR") or f"{home}/.triton"
    if triton.startswith("/"):
        yield "Triton", "TRITON_CACHE_DIR", posixpath.normpath(triton).replace("//", "/")


def _cache(
    host: Host, mounts: tuple[Mount, ...], user: Mapping[str, object], purpose: str, variable: str, path: str
) -> CompileCache:
    """Look at one cache. What lies below a directory that this session may not search is not its to write, whatever is there."""
    there, closed = path, False
    while there != "/" and (found := host.exists(there)) is not True:
        if isinstance(found, Missing) and found.why is not Why.DENIED:
            break
        closed = closed or isinstance(found, Missing)
        there = posixpath.dirname(there)
    real = host.real(there)
    mount = None if isinstance(real, Missing) else carrying(mounts, real)
    if mount is None or isinstance(real, Missing):
        why = real if isinstance(real, Missing) else Missing(Why.ABSENT, "/proc/self/mountinfo", f"no mount carries {real}")
        return CompileCache(
            purpose=purpose, variable=variable, path=path, filesystem=why, mount_point=why, noexec=why, network=why, writable=why
        )
    kind = carrier(mount.filesystem, mount.source)
    return CompileCache(
        purpose=purpose,
        variable=variable,
        path=path,
        filesystem=mount.filesystem,
        mount_point=mount.point,
        noexec="noexec" in mount.options,
        network=kind if isinstance(kind, Missing) else kind not in LOCAL and kind != "hypervisor",
        writable=False if closed or "ro" in mount.options else _writable(host, there, user),
    )


@fact
def _writable(host: Host, path: str, user: Mapping[str, object]) -> Fact[bool]:
    found = need(host.stat(path))
    if stat.S_ISREG(found.mode):
        return False
    if found.mode & 0o2 or (user and allowed(found, dict(user))):
        return True
    answer = need(host.ask(f"{queries.ACCESS}:{path}"))  # access lists, and the root of a network file system
    return bool(isinstance(answer, dict) and answer.get("write"))
