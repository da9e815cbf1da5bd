"""Resource limits as systemd's units take them: what limits.d gives to logins never reaches a service."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from torchtune_sys.model.actions import Limit
from torchtune_sys.model.rule import Result, Verdict
from torchtune_sys.remediation.plan.change_requests import failing

NAMES = {
    "as": "LimitAS",
    "core": "LimitCORE",
    "data": "LimitDATA",
    "fsize": "LimitFSIZE",
    "memlock": "LimitMEMLOCK",
    "nofile": "LimitNOFILE",
    "nproc": "LimitNPROC",
    "rss": "LimitRSS",
    "sigpending": "LimitSIGPENDING",
    "stack": "LimitSTACK",
}
"""Items of limits.conf(5), and the names of systemd.exec(5). Both count bytes there."""

_LOW_BY_DEFAULT = ("memlock", "nofile")
"""What a service gets less of than a login may have: 8 MiB locked, 1,024 open files (systemd-system.conf(5), DefaultLimit…)."""
HARD_NOFILE = 524_288
"""systemd's own hard limit of open files (v240 on): one number alone would set both, and lower it."""
_TASKS = ("nproc-limit-too-low", "cgroup-pids-limit")


class UnitLimit(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: str
    rule: str
    why: str


def limits(results: Iterable[Result]) -> tuple[UnitLimit, ...]:
    """Return one limit for each name. A limit that is fine in this session is asked for too where systemd gives its services less."""
    found: dict[str, UnitLimit] = {}
    for result in results:
        for limit in _asked(result):
            name = NAMES.get(limit.item)
            if name is not None and (name not in found or limit.target == "unlimited" or result.verdict is Verdict.FAIL):
                found[name] = _made(name, _value(limit), result)
        if result.rule.id in _TASKS and result.verdict is Verdict.FAIL:
            found["TasksMax"] = _made("TasksMax", "infinity", result)
    return tuple(found[name] for name in sorted(found))


def _made(name: str, value: str, result: Result) -> UnitLimit:
    why = result.rule.title if result.verdict is Verdict.FAIL else "logins have it; systemd gives services less unless configured"
    return UnitLimit(name=name, value=value, rule=result.rule.id, why=why)


def _asked(result: Result) -> Iterator[Limit]:
    wanted = [action for item in failing(result) for action in item.fix or result.rule.fix]
    if result.verdict is Verdict.PASS:
        wanted = [action for action in result.rule.fix if isinstance(action, Limit) and action.item in _LOW_BY_DEFAULT]
    yield from (action for action in wanted if isinstance(action, Limit))


def _value(limit: Limit) -> str:
    if limit.target == "unlimited":
        return "infinity"
    if limit.item == "nofile":
        return f"{limit.target}:{max(int(limit.target), HARD_NOFILE)}"
    return limit.target
