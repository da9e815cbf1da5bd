"""Whose session is judged: the user, how they got here, and the variables that training reads."""

from __future__ import annotations

from typing import Any

import msgspec

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host, Stat, interpreted
from torchtune_sys.host.environment import relevant
from torchtune_sys.knowledge.path_variables import named
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.session import HandedDown, SessionFacts, Workload
from torchtune_sys.model.values import Missing, Why, absent_or_unrecorded, fact, need


def probe(host: Host, intent: Workload) -> SessionFacts:
    env = host.env()
    if not isinstance(env, Missing):
        env = relevant(env)
    who = host.ask(queries.UID)
    preloads: dict[str, Fact[bool]] = {}
    if not isinstance(env, Missing):
        preloads = {path: host.exists(path) for path in preload_paths(env.get("LD_PRELOAD", ""))}
    system_preloads = _system_preloads(host)
    return SessionFacts(
        user=_user(who, env),
        uid=_uid(who),
        sudo_user=env if isinstance(env, Missing) else env.get("SUDO_USER") or env.get("DOAS_USER") or "",
        passwd_entry=_passwd_entry(who),
        env=env,
        virtual_env=env if isinstance(env, Missing) else env.get("VIRTUAL_ENV") or env.get("CONDA_PREFIX") or "",
        cwd=_cwd(host.ask(queries.CWD)),
        preloads=preloads,
        system_preloads=system_preloads,
        no_libraries=tuple(
            path for path, there in {**preloads, **system_preloads}.items() if there is True and _is_no_elf(host, path)
        ),
        named_paths={} if isinstance(env, Missing) else {name: host.exists(path) for name, path in named(env)},
        handed_down=_handed_down(host),
        refusals=_refusals(host.ask(queries.REFUSALS)),
        devices=_devices(host),
        user_namespace=_user_namespace(host),
    )


def _is_no_elf(host: Host, path: str) -> bool:
    found = host.ask(f"{queries.DYNAMIC}:{path}")
    return isinstance(found, Missing) and found.why is Why.UNPARSED


def _system_preloads(host: Host) -> dict[str, Fact[bool]]:
    text = host.text(_SYSTEM_PRELOAD)
    if isinstance(text, Missing):
        return {} if absent_or_unrecorded(text) else {_SYSTEM_PRELOAD: text}
    kept = " ".join(line.partition("#")[0] for line in text.split("\n"))
    return {path: host.exists(path) for path in preload_paths(kept)}


_SYSTEM_PRELOAD = "/etc/ld.so.preload"
_STATUS = "/proc/self/status"
_SIGNALS = {2: "SIGINT", 10: "SIGUSR1", 12: "SIGUSR2", 15: "SIGTERM", 17: "SIGCHLD"}
"""Numbers on all architectures that torch has wheels for (signal(7))."""


def _refusals(found: Fact[Any]) -> Fact[dict[str, str]]:
    if isinstance(found, Missing):
        return found
    if isinstance(found, dict) and all(isinstance(found.get(name), str) for name in ("code", "netlink")):
        return {name: found[name][:80] for name in ("code", "netlink")}
    return Missing(Why.UNPARSED, queries.REFUSALS, f"not an answer: {found!r:.60}")


_DEVICES = {"/dev/null": 0o666, "/dev/zero": 0o444, "/dev/random": 0o444, "/dev/urandom": 0o444}
"""With the permissions that everybody needs."""


def _devices(host: Host) -> Fact[dict[str, str]]:
    found = {path: host.stat(path) for path in _DEVICES}
    seen = {path: stat for path, stat in found.items() if not isinstance(stat, Missing)}
    looked = host.live or "/dev/zero" in seen  # earlier releases recorded /dev/null alone, for another reason
    if not seen and not looked:
        return Missing(Why.NOT_RECORDED, "/dev/null", "recorded by a release that did not look")
    unread = next((stat for stat in found.values() if isinstance(stat, Missing) and stat.why is not Why.ABSENT), None)
    if unread is not None:
        return unread
    return {path: _device(host, path, seen[path]) if path in seen else "missing" for path in _DEVICES if looked or path in seen}


def _device(host: Host, path: str, stat: Stat) -> str:
    if not stat.special:
        return "ordinary file"
    if stat.mode & _DEVICES[path] == _DEVICES[path]:
        return stat.special
    answer = host.ask(f"{queries.ACCESS}:{path}")  # root, its owner, an access list
    allowed = not isinstance(answer, dict) or (answer.get("read") and (answer.get("write") or path != "/dev/null"))
    return stat.special if allowed else f"{stat.special} closed"


@fact
def _handed_down(host: Host) -> Fact[HandedDown]:
    found = need(interpreted(host.text(_STATUS), parse_handed_down, _STATUS))
    persona = interpreted(host.word("/proc/self/personality"), lambda text: int(text, 16), "/proc/self/personality")
    return msgspec.structs.replace(found, personality=persona, timer_slack_ns=host.number("/proc/self/timerslack_ns"))


def parse_handed_down(status: str) -> Fact[HandedDown]:
    r"""Return what /proc/self/status says of signals, umask and huge pages; raises ValueError on a number that is none.

    >>> found = parse_handed_down("Umask:\t0022\nTHP_enabled:\t1\nSigBlk:\t0000000000004000\nSigIgn:\t0000000000011000\n")
    >>> found.ignored, found.blocked, found.umask, found.huge_pages
    (('SIGCHLD',), ('SIGTERM',), 18, True)
    """
    fields = dict(line.partition(":")[::2] for line in status.split("\n"))
    if "SigIgn" not in fields:
        return Missing(Why.ABSENT, _STATUS, "no line SigIgn: gVisor, or a recording that left it out")

    def signals(name: str) -> tuple[str, ...]:
        mask = int(fields.get(name, "0").strip(), 16)
        return tuple(word for number, word in _SIGNALS.items() if mask >> number - 1 & 1)

    told: dict[str, Any] = {}
    if "Umask" in fields:
        told["umask"] = int(fields["Umask"].strip(), 8)
    if "THP_enabled" in fields:
        told["huge_pages"] = fields["THP_enabled"].strip() == "1"
    return HandedDown(ignored=signals("SigIgn"), blocked=signals("SigBlk"), **told)


_UID_MAP = "/proc/self/uid_map"


def _user_namespace(host: Host) -> Fact[bool]:
    text = host.text(_UID_MAP)
    if isinstance(text, Missing):
        return False if text.why is Why.ABSENT else text  # a kernel without user namespaces
    return maps_users(text)


def maps_users(uid_map: str) -> bool:
    """Return whether a namespace has other user ids than its host: all but the initial one, which maps every id to itself.

    >>> maps_users("         0          0 4294967295\\n"), maps_users("0 1000 1\\n1 100000 65536\\n")
    (False, True)
    """
    return uid_map.split() != ["0", "0", "4294967295"]


def preload_paths(value: str) -> tuple[str, ...]:
    """Return the libraries in LD_PRELOAD that are absolute paths; names without a slash are searched by the loader, and
    ``$LIB``, ``$ORIGIN`` and ``$PLATFORM`` are its own (ld.so(8)).

    >>> preload_paths("/usr/lib/libjemalloc.so.2:libfoo.so /usr/$LIB/libgtk3-nocsd.so.0")
    ('/usr/lib/libjemalloc.so.2',)
    """
    words = value.replace(":", " ").split()
    return tuple(dict.fromkeys(word for word in words if word.startswith("/") and "$" not in word))[:64]


def _field(who: Fact[Any], name: str) -> Fact[Any]:
    if isinstance(who, Missing):
        return who
    if not isinstance(who, dict) or name not in who:
        return Missing(Why.UNPARSED, queries.UID, f"the answer has no {name}")
    return who[name]


def _uid(who: Fact[Any]) -> Fact[int]:
    found = _field(who, "uid")
    if isinstance(found, Missing) or (isinstance(found, int) and not isinstance(found, bool)):
        return found
    return Missing(Why.UNPARSED, queries.UID, f"not a user id: {found!r:.60}")


@fact
def _passwd_entry(who: Fact[Any]) -> Fact[bool]:
    return isinstance(need(_field(who, "user")), str)


def _user(who: Fact[Any], env: Fact[dict[str, str]]) -> Fact[str]:
    found = _field(who, "user")
    if isinstance(found, str):
        return found
    named = None if isinstance(env, Missing) else next(filter(None, map(env.get, ("LOGNAME", "USER", "LNAME", "USERNAME"))), None)
    if named:
        return named
    return found if isinstance(found, Missing) else Missing(Why.ABSENT, "getpwuid", "this uid has no entry in the user database")


def _cwd(found: Fact[Any]) -> Fact[str]:
    if isinstance(found, (Missing, str)):
        return found
    return Missing(Why.UNPARSED, queries.CWD, f"not a path: {found!r:.60}")
