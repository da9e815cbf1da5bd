"""One fault: what is broken, by which means from outside, and what the smoke test must say of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from smoke.faults.bench import Bench

Inject = Callable[["Bench"], None]


class Fault(NamedTuple):
    name: str
    what: str
    """For people: a sentence of docs/smoke-faults-by-stage.md."""
    means: str
    """How it is done: sitecustomize, LD_PRELOAD, namespace, rlimit, cgroup, seccomp, signal, environment."""
    inject: Inject
    stage: str
    """The stage that must fail, and its cause."""
    cause: str
    stages: str = ""
    """Those that run; "" for all but compile."""
    seen: str = ""
    """A pattern that must be in what was seen."""
    others: Mapping[str, str] = {}
    """Verdicts of other stages that are neither pass nor na."""
    ranks: int = 2
    quick: bool = False
    """Also in the default suite; the rest takes minutes."""
    run: str = ""
    """Faults of one word are injected at once, each into a stage of its own: what a run costs is mostly its start. With
    ``./run test --all`` each has a run of its own."""
    wrong: str = ""
    """Why the smoke test does not yet say so."""

    @property
    def sole(self) -> bool:
        """All stages run and no other one fails: nothing else would have caught it."""
        return not self.stages and "fail" not in self.others.values()
