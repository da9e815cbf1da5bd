"""Identify the interpreter that the session would train with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model import codec
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.python import PythonFacts
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded
from torchtune_sys.model.version import version as numbers_of

NAMES = ("python3", "python")


class InterpreterAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What ``host/children/interpreter_child.py`` prints."""

    executable: str | None
    version: str
    implementation: str
    machine: str
    free_threaded: bool
    prefix: str
    base_prefix: str
    path: tuple[str, ...]
    user_site: str | None = None
    glibc: str | None = None
    abiflags: str = ""
    not_found: tuple[str, ...] = ()
    start_errors: tuple[str, ...] | None = None
    judged_as: str = ""
    judged_without: tuple[str, ...] = ()


def chosen(host: Host, env: Fact[dict[str, str]], wanted: str | None) -> Fact[str]:
    """Return the interpreter's path: ``--python``, or what the session's PATH gives for python3 (else python)."""
    if wanted:
        return _named(host, env, wanted)
    if isinstance(env, Missing):
        return Missing(env.why, "PATH", "the session's PATH is not known", "--python PATH")
    lent = None
    for path in which(host, env, NAMES, environments=True):
        real = behind_shim(host, env, path)
        if real is not None and _is_lent_by_uvx(host, real):
            lent = lent or real
        elif real is not None:
            return real
    return lent or Missing(Why.ABSENT, "PATH", "no python3 and no python on PATH", "--python PATH")


def _is_lent_by_uvx(host: Host, path: str) -> bool:
    """Tell whether ``uvx`` put this interpreter before the session's own on PATH, for the program that it starts; one that was given torch
    (``--with torch``) is meant.

    Its environments lie in uv's cache (``archive-v0/ID``), or are those of ``uv tool install``, which leaves a receipt.
    """
    prefix = path.rpartition("/bin/")[0]
    cached = prefix.rpartition("/")[0].rpartition("/")[2].startswith("archive-v")
    if not cached and host.exists(f"{prefix}/uv-receipt.toml") is not True:
        return False
    return host.exists(f"{prefix}/lib/python{_listed_minor(host, prefix)}/site-packages/torch") is not True


def _named(host: Host, env: Fact[dict[str, str]], wanted: str) -> Fact[str]:
    if "/" not in wanted:
        found = None if isinstance(env, Missing) else next(which(host, env, (wanted,)), None)
        if found is not None:
            return found
    path = wanted
    if not path.startswith("/"):
        here = host.ask(queries.CWD)
        path = f"{here}/{wanted}" if isinstance(here, str) else wanted
    inside = next((f"{path.rstrip('/')}/bin/{name}" for name in NAMES if _is_there(host, f"{path}/bin/{name}")), None)
    if inside is None:
        links = (f"{path.rstrip('/')}{end}" for end in ("", *(f"/bin/{name}" for name in NAMES)))
        for link in links:
            if host.exists(link) is False and isinstance(target := host.link(link), str):
                # what a virtual environment's python is after its base Python was removed
                return Missing(Why.ABSENT, "--python", f"{link} points to {target}, which is gone")
    if inside is None and host.exists(path) is False:
        return Missing(Why.ABSENT, "--python", f"there is no {wanted}" if "/" in wanted else f"no {wanted!r} here or on PATH")
    return inside or path


def _is_there(host: Host, path: str) -> bool:
    """Tell whether there is such a file, or a link to where this user may not go."""
    found = host.exists(path)
    return found is True or (isinstance(found, Missing) and found.why is Why.DENIED and isinstance(host.link(path), str))


def which(host: Host, env: Mapping[str, str], names: tuple[str, ...], environments: bool = False) -> Iterator[str]:
    """Yield the files on PATH with one of ``names``, all directories for the first name before those for the second.

    ``environments``: also the link of a virtual environment whose base Python is gone or may not be reached. The shell passes over it,
    but it is what the session means.
    """
    folders = [folder for folder in env.get("PATH", "").split(":")[:200] if folder.startswith("/")]
    for name in names:
        for folder in dict.fromkeys(folders):
            path = f"{folder.rstrip('/')}/{name}"
            found = host.stat(path)
            if not isinstance(found, Missing):
                if found.mode & 0o170000 == 0o100000:
                    yield path
            elif environments and _has_lost_its_base(host, path, found):
                yield path


def _has_lost_its_base(host: Host, path: str, found: Missing) -> bool:
    cannot = found.why in (Why.ABSENT, Why.DENIED) and isinstance(host.link(path), str)
    return cannot and host.exists(f"{path.rpartition('/')[0].rpartition('/')[0]}/pyvenv.cfg") is True


def behind_shim(host: Host, env: Mapping[str, str], path: str) -> str | None:
    """Return what a pyenv shim would start, which takes a tenth of a second to say so itself; None if it means the next one on PATH.

    Order of pyenv: PYENV_VERSION, .python-version from the working directory upwards, the global version file. What is no plain name
    (``../..``) is none of its versions.
    """
    root, _, name = path.rpartition("/shims/")
    if not root or isinstance(host.names(f"{root}/versions"), Missing):
        return path
    for version in _pyenv_versions(host, env, root):
        if version == "system":
            return None
        if not is_version_name(version):
            continue
        for folder in (version, *_newest_of(host, root, version)):
            inside = f"{root}/versions/{folder}/bin/{name}"
            if host.exists(inside) is True:
                return inside
    return path


def _pyenv_versions(host: Host, env: Mapping[str, str], root: str) -> list[str]:
    if env.get("PYENV_VERSION"):
        return env["PYENV_VERSION"].split(":")
    here = host.ask(queries.CWD)
    folder = here if isinstance(here, str) and here.startswith("/") else ""
    while folder:
        found = host.text(f"{folder}/.python-version")
        if isinstance(found, str) and found.split() and _may_choose(host, f"{folder}/.python-version", root):
            return found.split()
        folder = folder.rpartition("/")[0]
    found = host.text(f"{root}/version")
    return found.split() if isinstance(found, str) else []


def is_version_name(text: str) -> bool:
    """Say whether a version file's word can be the name of a version's directory.

    >>> is_version_name("3.12.4"), is_version_name(".."), is_version_name("../../tmp/x"), is_version_name("")
    (True, False, False, False)
    """
    return text not in ("", ".", "..") and all(sign in "._-" or (sign.isascii() and sign.isalnum()) for sign in text)


def _may_choose(host: Host, path: str, root: str) -> bool:
    """Root heeds no file of somebody else's (in /tmp anybody can lay one), but where the versions are theirs, too."""
    who = host.ask(queries.UID)
    if not host.live or isinstance(who, Missing) or who.get("uid") != 0:
        return True
    file, versions = host.stat(path), host.stat(root)
    owner = None if isinstance(file, Missing) else file.uid
    return owner == 0 or (not isinstance(versions, Missing) and owner == versions.uid)


def _newest_of(host: Host, root: str, prefix: str) -> list[str]:
    """Return the newest installed patch release of ``3.12``."""
    names = host.names(f"{root}/versions")
    if isinstance(names, Missing):
        return []
    found = {name: natural(name.rpartition(".")[2]) for name in names if name.startswith(f"{prefix}.")}
    return sorted((name for name, patch in found.items() if patch is not None), key=lambda name: found[name] or 0)[-1:]


def ask(host: Host, executable: str) -> Fact[InterpreterAnswer]:
    """Return what the interpreter says of itself; where it cannot be started, what its files say."""
    found = host.ask(f"{queries.INTERPRETER}:{executable}")
    if isinstance(found, Missing):
        unasked = not host.live and absent_or_unrecorded(found)
        return derived(host, executable, found) if unasked else found
    return codec.as_fact(found, InterpreterAnswer, executable)


def derived(host: Host, executable: str, why: Missing) -> Fact[InterpreterAnswer]:
    """Return an interpreter from its files alone: a virtual environment's pyvenv.cfg, or the lib/python3.N beside bin."""
    prefix = executable.rpartition("/")[0].rpartition("/")[0] or "/usr"
    config = host.text(f"{prefix}/pyvenv.cfg")
    settings = {} if isinstance(config, Missing) else parse_pyvenv(config)
    home = settings.get("home", "").rstrip("/")
    base = home.rpartition("/")[0] or "/usr" if home else prefix
    minor = _minor(settings.get("version") or settings.get("version_info", "")) or _listed_minor(host, prefix)
    if not minor:
        return why
    path = [f"{prefix}/lib/python{minor}/site-packages", f"{prefix}/lib64/python{minor}/site-packages"]
    if base == prefix or settings.get("include-system-site-packages", "").lower() == "true":
        path += [f"{base}/local/lib/python{minor}/dist-packages", f"{base}/lib/python3/dist-packages"]
        path += [f"{base}/lib/python{minor}/site-packages"] if base != prefix else []
    return InterpreterAnswer(
        executable=executable,
        version=settings.get("version") or settings.get("version_info", "") or minor,
        implementation="",
        machine="",
        free_threaded=False,
        prefix=prefix,
        base_prefix=base,
        path=tuple(path),
    )


def _minor(text: str) -> str:
    parts = text.split(".")
    return ".".join(parts[:2]) if len(parts) > 1 and None not in map(natural, parts[:2]) else ""


def _listed_minor(host: Host, prefix: str) -> str:
    names = host.names(f"{prefix}/lib")
    found = [] if isinstance(names, Missing) else [name[6:] for name in names if name.startswith("python3.") and _minor(name[6:])]
    return found[0] if len(found) == 1 else ""


def parse_pyvenv(text: str) -> dict[str, str]:
    """Return pyvenv.cfg as a mapping.

    >>> parse_pyvenv("home = /usr/bin\\ninclude-system-site-packages = false\\nversion = 3.12.3\\n")["version"]
    '3.12.3'
    """
    lines = (line.partition("=") for line in text.splitlines()[:200])
    return {name.strip().lower(): value.strip() for name, equals, value in lines if equals}


def facts(executable: Fact[str], answer: Fact[InterpreterAnswer]) -> PythonFacts:
    """Return the part of PythonFacts that the interpreter itself tells."""
    if isinstance(answer, Missing):
        return PythonFacts(
            executable=executable,
            version=answer,
            implementation=answer,
            machine=answer,
            free_threaded=answer,
            prefix=answer,
            base_prefix=answer,
            sys_path=answer,
            user_site=answer,
            glibc=answer,
            start_errors=answer,
        )
    no_libc = Why.ABSENT if answer.version.startswith("3") and answer.machine else Why.NOT_RECORDED
    unsaid = Missing(Why.NOT_RECORDED, "interpreter", "derived from its files, not asked")
    return PythonFacts(
        executable=executable,
        version=answer.version
        if len(numbers_of(answer.version)) > 1
        else Missing(Why.UNPARSED, "interpreter", "it tells no version"),
        implementation=answer.implementation or unsaid,
        machine=answer.machine or unsaid,
        free_threaded=answer.free_threaded if answer.machine else unsaid,
        prefix=answer.prefix,
        base_prefix=answer.base_prefix,
        sys_path=answer.path,
        user_site=answer.user_site
        or Missing(Why.ABSENT if answer.machine else Why.NOT_RECORDED, "site", "no user site directory is in use"),
        glibc=answer.glibc or Missing(no_libc, "confstr(CS_GNU_LIBC_VERSION)", "the interpreter names no glibc"),
        not_found=answer.not_found,
        start_errors=Missing(Why.ABSENT, "interpreter", "not started for this look")
        if answer.start_errors is None
        else answer.start_errors,
        judged_as=answer.judged_as,
        judged_without=answer.judged_without,
    )
