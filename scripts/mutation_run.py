"""Runs the tests of ``rules/`` once, then each mutant in a fork of that process over the tests that reach its function.

mutmut starts pytest anew for each mutant; here the tests are collected once, which is some fifty times faster.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import wraps
from types import ModuleType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

KILLED, SURVIVED, UNTESTED, TIMEOUT = "killed", "survived", "untested", "timeout"
DEADLINE_S = 20.0
"""Of processor time: another program's load kills no mutant."""
MODULES_AT_MOST = 12
"""A test that reaches more modules of rules/ judges the whole catalogue: slow, and not written for one rule."""


class Switch(ModuleType):
    """The module ``mutant_switch`` that mutated files import: which mutant is on, and which functions were called."""

    MutantDict = dict

    def __init__(self) -> None:
        super().__init__("mutant_switch")
        self.active = ""
        self.reached: set[str] = set()

    def wrap_in_trampoline(self, mutants: dict[str, Callable[..., Any]]) -> Callable[..., Any]:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            @wraps(function)
            def call(*args: Any, **kwargs: Any) -> Any:
                if self.active:
                    module, _, name = self.active.rpartition(".")
                    chosen = mutants.get(name) if module == function.__module__ else None
                    return (chosen or mutants["_mutmut_orig"])(*args, **kwargs)
                original = mutants["_mutmut_orig"]
                self.reached.add(f"{original.__module__}.{original.__name__}")
                return original(*args, **kwargs)

            return call

        return decorate


class Mutants:
    """A pytest plugin: ``mutants`` by their dotted names; for those in ``changes``, the functions concerned, and what to do."""

    def __init__(
        self, switch: Switch, mutants: list[str], changes: Mapping[str, tuple[frozenset[str], Callable[[], None]]] | None = None
    ) -> None:
        self.switch = switch
        self.mutants = mutants
        self.changes = changes or {}
        self.outcome: dict[str, str] = {}
        self.broken: list[str] = []
        self.broad = 0

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        tests = self._reached(session)
        gc.collect()
        gc.freeze()
        begin = time.monotonic()
        for done, mutant in enumerate(self.mutants, 1):
            self.outcome[mutant] = self._try(mutant, self._concerned(mutant, tests))
            if self.outcome[mutant] != KILLED:
                print(self.outcome[mutant], mutant, file=sys.__stderr__, flush=True)
            if done % 200 == 0:
                print(f"{done} of {len(self.mutants)} after {time.monotonic() - begin:.0f} s", file=sys.__stderr__, flush=True)
        return True

    def _concerned(self, mutant: str, tests: dict[str, list[pytest.Item]]) -> list[pytest.Item]:
        if mutant not in self.changes:
            return tests.get(mutant.rpartition("__mutmut_")[0] + "__mutmut_orig", [])
        functions = {_original(user) for user in self.changes[mutant][0]}
        if not functions <= set(tests):  # one without mutants leaves no trace
            modules = {user.rpartition(".")[0] for user in self.changes[mutant][0]}
            functions |= {function for function in tests if function.rpartition(".")[0] in modules}
        return list(dict.fromkeys(item for function in sorted(functions) for item in tests.get(function, [])))

    def _reached(self, session: pytest.Session) -> dict[str, list[pytest.Item]]:
        """Tests by the functions they call; those that call the fewest others come first."""
        tests: dict[str, list[tuple[int, int, pytest.Item]]] = defaultdict(list)
        for number, item in enumerate(session.items):
            self.switch.reached.clear()
            if _fails(item):
                self.broken.append(item.nodeid)
                continue
            if len({function.rpartition(".")[0] for function in self.switch.reached}) > MODULES_AT_MOST:
                self.broad += 1
                continue
            for function in self.switch.reached:
                tests[function].append((len(self.switch.reached), number, item))
        return {function: [item for _, _, item in sorted(items, key=lambda i: i[:2])] for function, items in tests.items()}

    def _try(self, mutant: str, tests: list[pytest.Item]) -> str:
        if not tests:
            return UNTESTED
        child = os.fork()
        if not child:
            for number, timer, seconds in (
                (signal.SIGPROF, signal.ITIMER_PROF, DEADLINE_S),
                (signal.SIGALRM, signal.ITIMER_REAL, 30 * DEADLINE_S),
            ):
                signal.signal(number, signal.SIG_DFL)
                signal.setitimer(timer, seconds)
            os._exit(self._run(mutant, tests))
        status = os.waitpid(child, 0)[1]
        if os.WIFSIGNALED(status):
            return TIMEOUT
        return SURVIVED if os.WEXITSTATUS(status) == 0 else KILLED

    def _run(self, mutant: str, tests: list[pytest.Item]) -> int:
        self.switch.active = mutant
        try:
            if mutant in self.changes:
                self.changes[mutant][1]()
            return int(any(_fails(item) for item in tests))
        except BaseException:
            return 1


def _original(function: str) -> str:
    """mutmut's name for it.

    >>> _original("torchtune_sys.rules.cpu.available.budget")
    'torchtune_sys.rules.cpu.available.x_budget__mutmut_orig'
    """
    module, _, name = function.rpartition(".")
    return f"{module}.x_{name}__mutmut_orig"


def _fails(item: pytest.Item) -> bool:
    return any(report.failed for report in runtestprotocol(item, log=False, nextitem=None))
