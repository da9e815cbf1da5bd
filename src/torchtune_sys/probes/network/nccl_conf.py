"""NCCL's settings: the environment, and the two files that NCCL reads where the environment says nothing.

NCCL (src/misc/param.cc) reads ``$NCCL_CONF_FILE`` (since 2.23) or else ``~/.nccl.conf``, then ``/etc/nccl.conf``, and puts each line's
variable into the environment unless it is there already, even if empty. The home is that of the user database up to 2.29 and ``$HOME``
from 2.30. A line is split at its first ``=`` and nothing is trimmed or unquoted; ``#`` at the start is a comment since 2.26.
RCCL reads files of its own instead, ``~/.rccl.conf`` and ``/etc/rccl.conf``.
"""

from __future__ import annotations

import msgspec

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.network import IgnoredLine, NcclFiles, NcclSetting
from torchtune_sys.model.values import Missing, Why, fact, need

HOME_VARIABLE_SINCE = "2.30.3"
_UNREADABLE_FOR_NCCL_TOO = (Why.ABSENT, Why.DENIED)

Found = tuple[tuple[NcclSetting, ...], NcclFiles]


@fact
def read(host: Host) -> Fact[Found]:
    env = need(host.env())
    settings = {
        (name, ""): NcclSetting(name=name, value=value, source="environment") for name, value in env.items() if _ours(name)
    }
    ignored: list[IgnoredLine] = []
    chosen = env.get("NCCL_CONF_FILE", "")
    amds = host.exists("/sys/module/amdgpu") is True
    for path, first, before in (*_paths(host, env), *(_paths(host, env, "rccl") if amds and not chosen else ())):
        text = host.text(path)
        if isinstance(text, Missing):
            if text.why not in _UNREADABLE_FOR_NCCL_TOO:
                return text
            if path == chosen:
                ignored.append(
                    IgnoredLine(
                        source="NCCL_CONF_FILE", text=path, why=f"the file cannot be read: {text.detail or text.why.value}"
                    )
                )
            continue
        lines, odd = parse_conf(text, path)
        ignored.extend(msgspec.structs.replace(line, first=first, before=before) for line in odd)
        for line in lines:
            if (line.name, "") not in settings:
                of_some = first or before or path.endswith("rccl.conf")
                settings.setdefault((line.name, path if of_some else ""), _of(line, first, before))
    found = tuple(settings[key] for key in sorted(settings, key=lambda key: (key[0], not key[1])))
    topology = next((setting for setting in found if setting.name == "NCCL_TOPO_FILE"), None)
    return found, NcclFiles(ignored=tuple(ignored), missing_topology=_missing(host, topology))


def _of(line: NcclSetting, first: str, before: str) -> NcclSetting:
    return msgspec.structs.replace(line, first=first, before=before) if first or before else line


def _paths(host: Host, env: dict[str, str], library: str = "nccl") -> list[tuple[str, str, str]]:
    """Files in the order in which NCCL reads them, each with the first release that reads it and the first that no longer does. RCCL's (src/misc/param.cc)
    have its name."""
    if chosen := env.get("NCCL_CONF_FILE"):
        mine = [(chosen, "", "")]
    else:
        variable, entry = env.get("HOME", ""), _passwd_home(host)
        if entry in ("", variable.rstrip("/")):  # no entry that could be seen: what the variable says is the best guess
            mine = [(variable, "", "")]
        else:
            mine = [(entry, "", HOME_VARIABLE_SINCE), (variable, HOME_VARIABLE_SINCE, "")]
        mine = [(f"{home}/.{library}.conf", first, before) for home, first, before in mine if home]
    return [row for row in (*mine, (f"/etc/{library}.conf", "", "")) if row[0].startswith("/")]


def _passwd_home(host: Host) -> str:
    """Return the home that the user database gives the user who is judged; ``""`` where it has none or was not asked."""
    answer = host.ask(queries.UID)
    home = answer.get("home") if isinstance(answer, dict) else None
    return home.rstrip("/") if isinstance(home, str) else ""


@fact
def _missing(host: Host, topology: NcclSetting | None) -> Fact[str]:
    if topology is None or not topology.value.startswith("/"):
        return ""
    there = need(host.exists(topology.value))
    return "" if there else topology.value


def _ours(name: str) -> bool:
    return name.startswith("NCCL_") and name.isascii() and not any(letter.isspace() for letter in name)


def parse_conf(text: str, path: str) -> tuple[tuple[NcclSetting, ...], tuple[IgnoredLine, ...]]:
    """Return the settings of one nccl.conf, the first of several for a name counting, and the lines that do not do what they say.

    >>> settings, odd = parse_conf("NCCL_DEBUG=INFO\\nexport NCCL_IB_HCA=mlx5\\n", "/etc/nccl.conf")
    >>> settings[0].value, settings[0].source, odd[0].why
    ('INFO', '/etc/nccl.conf:1', 'it sets a variable named "export NCCL_IB_HCA"')
    """
    settings: dict[str, NcclSetting] = {}
    odd: list[IgnoredLine] = []
    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.removesuffix("\r")
        source = f"{path}:{number}"
        if not line.strip() or line.startswith("#"):
            continue
        name, equals, value = line.partition("=")
        why = _oddity(name, equals, value, raw)
        if why and "NCCL" in line:
            cured = _RETURN_CUT_IN if why == _RETURN else ""
            odd.append(IgnoredLine(source=source, text=line.strip()[:200], why=why, cured_in=cured))
        if equals and _ours(name):
            settings.setdefault(name, NcclSetting(name=name, value=value[:1023], source=source))
    return tuple(settings.values()), tuple(odd)


_RETURN, _RETURN_CUT_IN = "the carriage return becomes part of the value before NCCL 2.30.3", "2.30.3"


def _oddity(name: str, equals: str, value: str, raw: str) -> str:
    if not equals:
        return "it has no =, so it sets nothing"
    if name.strip() != name or any(letter.isspace() for letter in name):
        return f'it sets a variable named "{name[:80]}"'
    if value[:1] in ("'", '"'):
        return "the quotes become part of the value"
    if value.strip() != value:
        return "the blank becomes part of the value"
    if " #" in value or "\t#" in value:
        return "the comment becomes part of the value"
    return _RETURN if raw.endswith("\r") else ""
