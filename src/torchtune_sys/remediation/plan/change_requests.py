"""Collect what failed rules want changed, one request per setting, with the targets of several rules combined."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from torchtune_sys.model import actions
from torchtune_sys.model.actions import (
    Action,
    Advice,
    EnvironmentVariable,
    Install,
    KernelArgument,
    Limit,
    ModuleOption,
    NvmlSetting,
    OwnedFile,
    Safety,
    Service,
    Sysctl,
    SysfsWrite,
)
from torchtune_sys.model.plan import ByHand
from torchtune_sys.model.rule import Evidence, Result, Verdict
from torchtune_sys.model.target import AtLeast, AtMost, Exactly, OneOf, Target, fits


class ChangeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One rule's action for one subject."""

    rule: str
    why: str
    seen: str
    wanted: str
    action: Action
    subject: str = ""
    """What the rule judged; may be another setting than the one that is changed."""


class RequestGroup(msgspec.Struct, frozen=True, kw_only=True):
    """All requests about one thing."""

    key: str
    requests: tuple[ChangeRequest, ...]
    merged: Action | str
    """The action that satisfies all of them, or why none does."""

    @property
    def rules(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(request.rule for request in self.requests))


def asked(results: Iterable[Result]) -> Iterator[ChangeRequest]:
    """Yield what torchtune-sys could do itself, in the order of the results."""
    for result in results:
        for item in failing(result):
            for action in item.fix or result.rule.fix:
                if actions.doable(action):
                    yield ChangeRequest(
                        rule=result.rule.id,
                        why=result.rule.title,
                        seen=item.seen,
                        wanted=item.wanted,
                        action=action,
                        subject=item.subject,
                    )


def failing(result: Result) -> tuple[Evidence, ...]:
    return tuple(item for item in result.evidence if item.verdict is Verdict.FAIL) if result.verdict is Verdict.FAIL else ()


def by_hand(results: Iterable[Result]) -> Iterator[ByHand]:
    """Yield what is left to a person, per failed rule: the worst severity first, else in the order of the results, as ``check`` tells them."""
    for result in sorted(results, key=lambda result: result.rule.severity.rank):
        found = failing(result)
        texts = dict.fromkeys(
            actions.text(action) for item in found for action in _all(item, result) if not actions.doable(action)
        )
        if texts:
            seen = "; ".join(f"{item.subject}: {item.seen}" for item in found[:3])
            yield ByHand(rule=result.rule.id, why=result.rule.title, seen=seen, texts=tuple(texts))


def _all(item: Evidence, result: Result) -> Iterator[Action]:
    """Yield the subject's own actions, and of the rule's those of other kinds."""
    yield from item.fix
    kinds = {type(action) for action in item.fix}
    yield from (action for action in result.rule.fix if type(action) not in kinds)


def grouped(requests: Iterable[ChangeRequest]) -> Iterator[RequestGroup]:
    by_key: dict[str, list[ChangeRequest]] = {}
    for request in requests:
        by_key.setdefault(key(request.action), []).append(request)
    for name, found in by_key.items():
        yield RequestGroup(key=name, requests=tuple(found), merged=_merged(found))


def key(action: Action) -> str:
    """Return what is changed; two actions of one key cannot both be done."""
    match action:
        case Sysctl(key=name):
            return name
        case SysfsWrite(path=path) | OwnedFile(path=path):
            return path
        case KernelArgument(argument=argument):
            return f"kernel argument {argument.partition('=')[0]}"
        case Limit(item=item):
            return f"limit {item}"
        case Service(unit=unit):
            return f"service {unit}"
        case ModuleOption(module=module, option=option):
            return f"module {module} {option.partition('=')[0]}"
        case Install() | NvmlSetting() | EnvironmentVariable() | Advice():
            return actions.text(action)


def _merged(requests: list[ChangeRequest]) -> Action | str:
    action = requests[0].action
    for other in requests[1:]:
        joined = _meet(action, other.action)
        if joined is None:
            both = "; ".join(f"{request.rule}: {actions.text(request.action)}" for request in (requests[0], other))
            return f"two rules want different values: {both}"
        action = joined
    return action


def _meet(one: Action, other: Action) -> Action | None:
    if msgspec.structs.replace(one, but="") == msgspec.structs.replace(other, but=""):
        return one
    if isinstance(one, Sysctl | SysfsWrite) and isinstance(other, type(one)):
        target = meet(one.target, other.target)
        if target is None:
            return None
        safety = one.safety if one.safety is not Safety.SAFE else other.safety
        return msgspec.structs.replace(one, target=target, safety=safety)
    if isinstance(one, Limit) and isinstance(other, Limit):
        return max((one, other), key=lambda limit: float("inf") if limit.target == "unlimited" else float(limit.target))
    return None


def meet(one: Target, other: Target) -> Target | None:
    """Return a target that satisfies both; None where there is none.

    >>> meet(AtLeast(5), AtLeast(9)), meet(AtMost(10), Exactly("1")), meet(Exactly("0"), Exactly("1"))
    (AtLeast(value=9), Exactly(value='1'), None)
    >>> meet(OneOf(("madvise", "always")), OneOf(("always", "never"))), meet(AtLeast(5), AtMost(3))
    (OneOf(values=('always',)), None)
    """
    match one, other:
        case AtLeast(value=a), AtLeast(value=b):
            return AtLeast(max(a, b))
        case AtMost(value=a), AtMost(value=b):
            return AtMost(min(a, b))
        case (AtLeast(value=low), AtMost(value=high)) | (AtMost(value=high), AtLeast(value=low)):
            return Exactly(str(low)) if low <= high else None
        case OneOf(values=a), OneOf(values=b):
            both = tuple(value for value in a if value in b)
            return OneOf(both) if both else None
        case _:
            return _chosen(one, other) or _chosen(other, one)


def _chosen(one: Target, other: Target) -> Target | None:
    """``one``'s exact values that ``other`` accepts."""
    values = (one.value,) if isinstance(one, Exactly) else one.values if isinstance(one, OneOf) else ()
    fitting = tuple(value for value in values if fits(other, value))
    return None if not fitting else Exactly(fitting[0]) if len(fitting) == 1 else OneOf(fitting)
