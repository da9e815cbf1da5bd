"""Rules, their evidence and their results.

A rule is a pure generator ``judge(snapshot, params) -> Evidence…`` under :func:`rule`. It reads facts with
``need`` (which ends it as *unknown*), raises ``NotApplicable`` where there is nothing to judge, and yields one
``Evidence`` per subject. Nothing yielded means *pass*, or *na* for the reason that its ``nothing`` gives.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING

import msgspec

from torchtune_sys.model.actions import Action
from torchtune_sys.model.values import Missing

if TYPE_CHECKING:
    from torchtune_sys.model.snapshot import Snapshot


class Severity(str, enum.Enum):
    """How bad a finding is: training fails or is wrong; is slow or fragile; could be better."""

    ERROR = "error"
    WARNING = "warning"
    ADVICE = "advice"

    @property
    def rank(self) -> int:
        """Return the place in the order; 0 for the worst."""
        return tuple(Severity).index(self)


class Verdict(str, enum.Enum):
    PASS = "pass"
    FAIL = "fail"
    UNKNOWN = "unknown"
    NA = "na"
    CRASHED = "crashed"


class Status(str, enum.Enum):
    PREVIEW = "preview"
    STABLE = "stable"


SEE, TO_DO = "see ", "to do: "
"""How ``wanted`` begins where it names the rule that tells the same fault, and where it says what to do and not how things should be."""


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """What was found on one subject (``GPU 3``, ``eth0``, ``vm.swappiness``)."""

    subject: str
    seen: str
    wanted: str = ""
    verdict: Verdict = Verdict.FAIL
    source: str = ""
    """Where it was seen: a path, a command, an NVML call, a package's metadata."""
    why: Missing | None = None
    """Set where the verdict is unknown: what could not be seen, and why."""
    fix: tuple[Action, ...] = ()
    """The rule's fix as this subject needs it (its own path, its own value); empty where the rule's fix says it all."""
    about: tuple[str, ...] = ()
    """Other names of the subject, by which ``superseded_by`` finds what another rule says of the same."""
    cause: str = ""
    """The cause that ``diagnose`` names for this subject, where it is not the one that the rule stands for."""


def unsure(subject: str, missing: Missing, wanted: str = "") -> Evidence:
    """Return evidence that one subject could not be checked."""
    return Evidence(
        subject=subject, seen=str(missing), wanted=wanted, verdict=Verdict.UNKNOWN, source=missing.source, why=missing
    )


class Param(msgspec.Struct, frozen=True):
    """A number or text that a profile or a configuration file may override."""

    name: str
    default: int | float | str | bool
    doc: str


Params = Mapping[str, int | float | str | bool]
Judge = Callable[["Snapshot", Params], Iterable[Evidence]]
Gate = Callable[["Snapshot"], None]


def asked(rule_id: str, param: str) -> str:
    """Return the name that another rule's parameter has in the ``Params`` of a rule that asks it.

    >>> asked("swappiness-high", "max")
    'swappiness-high.max'
    """
    return f"{rule_id}.{param}"


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    """Kebab-case, named for the defect, never reused."""
    title: str
    """One line that states the defect."""
    severity: Severity
    judge: Judge
    family: str
    doc: str
    cause: str = ""
    """The slug of the known cause that this rule stands for; the smoke test names causes by the same slugs."""
    fix: tuple[Action, ...] = ()
    params: tuple[Param, ...] = ()
    applies: Gate | None = None
    """Raises NotApplicable (or Unknown, through need()) where the rule has nothing to judge."""
    status: Status = Status.STABLE
    superseded_by: tuple[str, ...] = ()
    """Rules (ids) that say more of the same fault: a finding is folded into a finding of theirs with the same subject."""
    explained_by: tuple[str, ...] = ()
    """Rules (ids) any finding of which explains all that this rule finds."""
    asks: tuple[Rule, ...] = ()
    """Rules whose parameters this one judges by, too; their names in its ``Params`` are :func:`asked`."""
    nothing: str = ""
    """Why the rule does not apply where it yields nothing; "" where that is a pass."""
    measures_by: tuple[str, ...] = ()
    """Families by which it only measures what it judges (a limit, against the memory): hosts that differ in these differ in no fault of this kind."""


def rule(
    *,
    id: str,
    title: str,
    severity: Severity,
    cause: str = "",
    fix: tuple[Action, ...] = (),
    params: tuple[Param, ...] = (),
    applies: Gate | None = None,
    status: Status = Status.STABLE,
    superseded_by: tuple[str, ...] = (),
    explained_by: tuple[str, ...] = (),
    asks: tuple[Rule, ...] = (),
    nothing: str = "",
    measures_by: tuple[str, ...] = (),
) -> Callable[[Judge], Rule]:
    """Turn a judging function into a Rule value. Registers nothing: ``rules/__init__.py`` lists the families, they their modules."""

    def make(judge: Judge) -> Rule:
        return Rule(
            id=id,
            title=title,
            severity=severity,
            judge=judge,
            family=judge.__module__.split(".")[2],  # torchtune_sys.rules.storage.space is of family storage
            doc=judge.__doc__ or "",
            cause=cause,
            fix=fix,
            params=params,
            applies=applies,
            status=status,
            superseded_by=superseded_by,
            explained_by=explained_by,
            asks=asks,
            nothing=nothing,
            measures_by=measures_by,
        )

    return make


def rules_of(*modules: ModuleType) -> tuple[Rule, ...]:
    """Return the rules that are defined in these modules, in the order of their definitions."""
    return tuple(
        value
        for module in modules
        for value in vars(module).values()
        if type(value) is Rule and value.judge.__module__ == module.__name__
    )


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict of one rule on one host."""

    rule: Rule
    verdict: Verdict
    evidence: tuple[Evidence, ...] = ()
    why_unknown: Missing | None = None
    """Set where the verdict is unknown as a whole."""
    note: str = ""
    """Why the rule does not apply (na), or the first line of the traceback (crashed)."""
