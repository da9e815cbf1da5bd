"""Shared by all tests: recorded hosts by name."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import signal
import sys
import threading
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

# What pytest rewrites, the tests and hypothesis (each worker: 89 modules), is kept for the other workers and for the next run, whatever the
# shell's PYTHONDONTWRITEBYTECODE says. What tests start keeps that variable.
sys.dont_write_bytecode = False

import hypothesis
import pytest
import pytest_rerunfailures  # type: ignore[import-untyped]

from rules.remembered import Remembered, RememberedResults
from torchtune_sys import engine
from torchtune_sys.host.recorded import SCHEMA, load_recording, merged, parse_recording
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.rule import Result, Rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.rules import by_id
from two_users import scene, two_accounts  # noqa: F401

for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if (
        signal.getsignal(number) is signal.SIG_IGN
    ):  # behind nohup, or in the background of a script: the tests' programs would inherit it
        with suppress(ValueError):  # not in the main thread
            signal.signal(number, handler)

hypothesis.settings.register_profile("busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("busy")  # how long an example takes is the machine's affair: speed is held by benchmarks/

# A snapshot has a thread for each family; where nothing waits, changing between them costs a fifth of it.
sys.setswitchinterval(0.05)

gc.disable()  # until the tests are collected: what they are made of stays until the end

HOSTS = Path(__file__).parent / "hosts"
RULES = by_id()


def load(name: str, **overlay: Any) -> Snapshot:
    """Snapshot of tests/hosts/<name>.json with sections laid over it (``files={"/proc/meminfo": None}``)."""
    return _snapshot(name, overlay) if overlay else _plain(name)


BASES = ("healthy.json", "base-single-gpu.json", "base-amd-gpu.json", "base-rpm-host.json", "base-no-module.json")


@lru_cache(32)
def recording(name: str) -> dict[str, Any]:
    """Return tests/hosts/<name>.json with what it extends; not to be changed.

    Most lay a few lines over the healthy host, which is made of seventeen files, or over another that many do: those are read once.
    """
    place = HOSTS / f"{name}.json"
    own = json.loads(place.read_bytes())
    base = own.pop("extends", None)
    if not isinstance(base, str) or base not in BASES:
        return load_recording(str(place))
    parse_recording(json.dumps({"schema": SCHEMA, **own}).encode(), place.name, None)  # refuses what is no recording
    return merged(recording(base.removesuffix(".json")), own)


@lru_cache(1024)
def _plain(name: str) -> Snapshot:
    """Return the snapshot of a file as it is: frozen, so that one serves all tests of a process; most of it is that of the host below."""
    return _snapshot(name, {})


def _snapshot(name: str, overlay: dict[str, Any]) -> Snapshot:
    """Return what is seen of a host; what others lie over is probed once, and then only where they differ from it."""
    laid = merged(recording(name), overlay)
    below = name if overlay else _base(name)
    host = _remembered(below if f"{below}.json" in BASES else "healthy")
    return host.snapshot(laid, f"recording {name}.json", intent(laid), timeout_s=20)


def _base(name: str) -> str:
    """Return the host that a recording is laid over; itself where it extends none, or several."""
    base = json.loads((HOSTS / f"{name}.json").read_bytes()).get("extends", name)
    return base.removesuffix(".json") if isinstance(base, str) else name


def intent(laid: Mapping[str, Any]) -> Workload:
    """Return what a recording says that the person said about the job."""
    told: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in laid.get("intent", {}).items()}
    return Workload(**told)


@lru_cache(len(BASES))
def _remembered(name: str) -> Remembered:
    return Remembered(recording(name), intent(recording(name)))


class Judged(Mapping[str, Result]):
    """Results of the whole catalogue by rule id; each rule is asked when its result is wanted."""

    def __init__(self, seen: Snapshot) -> None:
        self._seen = seen
        self._found: dict[str, Result] = {}

    def __getitem__(self, rule_id: str) -> Result:
        if rule_id not in self._found:
            self._found[rule_id] = judge_one(self._seen, rule_id)
        return self._found[rule_id]

    def __iter__(self) -> Iterator[str]:
        """All are wanted: judging them in one go asks no rule twice, and none that reads nothing but what the healthy host has, too."""
        if len(self._found) < len(RULES):
            self._found |= zip(RULES, healthy_results().judge(self._seen), strict=True)
        return iter(RULES)

    def __len__(self) -> int:
        return len(RULES)


@lru_cache(1)
def healthy_results() -> RememberedResults:
    return RememberedResults(load("healthy"))


def judge(seen: Snapshot) -> Judged:
    """Return the results of the whole catalogue, by rule id."""
    return Judged(seen)


def judge_one(seen: Snapshot, rule_id: str) -> Result:
    """Return the result of one rule, judged together with those that may report the same fault in its place."""
    asked: dict[str, Rule] = {}
    todo = [rule_id]
    while todo:
        name = todo.pop()
        if name not in asked:
            asked[name] = RULES[name]
            todo += (*RULES[name].superseded_by, *RULES[name].explained_by)
    return engine.judge(seen, asked.values())[0]


def assert_valid(value: object, schema: str) -> None:
    """Fail where what a command printed breaks the published schema of that name."""
    _validator(schema).validate(value)


@lru_cache
def _validator(name: str) -> Any:
    """Return what checks by a schema; to make it takes a hundred times as long as to ask it."""
    from jsonschema.validators import validator_for

    from torchtune_sys.render import schemas

    schema = json.loads(schemas.schemas()[name])
    return validator_for(schema)(schema)


@contextmanager
def alone_with(program: str) -> Iterator[None]:
    """One at a time on this machine: the control groups that ``program`` makes have the same names each time."""
    with open(program, "rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    """A thread that goes on after its test asks, opens and forks in the tests after it: whoever makes one hang lets it go."""
    before = threading.active_count()
    there = {*threading.enumerate()}
    yield
    if threading.active_count() > before:
        left = [thread for thread in threading.enumerate() if thread not in there]
        for thread in left:
            thread.join(20)
        assert not [thread for thread in left if thread.is_alive()], "a thread of this test goes on"


@pytest.fixture
def healthy() -> Snapshot:
    return load("healthy")


TIER = {"0": "default", "": "default", "all": "all"}.get(os.environ.get("TORCHTUNE_SYS_TEST_LONG", "0"), "ci")
"""How much is run: ``./run test``, ``.ci/run`` or ``./run test --all``."""
TIERS = {
    "long": (("ci", "all"), "takes long: ./run test --long runs it, as CI does"),
    "exhaustive": (("all",), "one of many alike, of which CI runs a few: ./run test --all runs it"),
}
"""Marker → where such tests run, and what is said elsewhere."""


def exhaustive(*values: Any) -> list[Any]:
    """Return parameters that only ``./run test --all`` tries, to stand behind those that CI does."""
    return [pytest.param(value, marks=pytest.mark.exhaustive) for value in values]


COSTS = Path(__file__).with_name("costs.csv")
"""Tests that took more than 0.2 CPU s in the median of their rows, in one run of CI (scripts/test_durations.py writes it)."""
TURN = os.environ.get("TORCHTUNE_SYS_TEST_TURN", "all")
"""Which costly tests CI runs: those of turn "0", "1" or "2", or "all" (``run`` sets it, by the commit)."""
TURNS = ("0", "1", "2")


@lru_cache(1)
def _costly() -> frozenset[str]:
    """Return the tests that ``./run test`` leaves to CI for what they cost."""
    return frozenset(line.rpartition(",")[0] for line in COSTS.read_text().splitlines()[1:])


def name_in_junit(item: pytest.Item) -> str:
    """Return a test's name without its parameters, as a JUnit file has it: ``tests.rules.test_catalogue::test_rule_is_documented``."""
    return f"{_module(item.path)}::{getattr(item, 'originalname', None) or item.name}"


@lru_cache(None)
def _module(path: Path) -> str:
    return ".".join(path.relative_to(Path(__file__).parents[1]).with_suffix("").parts)


def _is_left_to_ci(item: pytest.Item) -> bool:
    return "essential" not in item.keywords and ("turn" in item.keywords or name_in_junit(item) in _costly())


def _is_left_to_another_turn(item: pytest.Item) -> bool:
    """Whether the CI of another commit runs a costly test; rows of one test are in all turns, but for those that share what is costly: ``turn(number)``."""
    if TURN not in TURNS:
        return False
    if shared := item.get_closest_marker("turn"):
        return str(shared.args[0]) != TURN
    return _is_left_to_ci(item) and zlib.crc32(item.nodeid.encode()) % len(TURNS) != int(TURN)


LONGEST = (
    "vm/test_remedy.py",
    "vm/test_provision.py",
    "vm/test_power.py",
    "smoke/test_faults.py",
    "smoke/test_faults_joint.py",
    "cli/test_prove.py",
    "smoke/test_listening.py",
    "ansible/test_hosts.py",
    "smoke/test_faults_hosting.py",
    "smoke/test_nodes.py",
    "smoke/test_driver.py",
    "render/generate/test_dockerfile_built.py",
    "vm/test_launch_guest.py",
    "network/test_wheels_exist.py",
    "vm/test_scenarios.py",
    "render/generate/test_script_hosts.py",
    "render/generate/test_script_killed.py",
)
"""Begun first, so that nobody waits for them in the end; those that compute between those that wait."""


_BEGUN = pytest.StashKey[float]()


def _processor_seconds() -> float:
    """Return the CPU seconds of this process, of the children it has waited for, and of the commands that its servers ran."""
    servers = filter(None, map(sys.modules.get, ("warm", "preflight.joint.warm_torch", "smoke.faults.forked")))
    return sum([*os.times()[:4], *(each.spent_s() for each in servers)], 0.0)


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Spare a worker of pytest-xdist to ask its controller, over a socket and byte by byte, how often each test was tried before.

    That is for tests whose worker died; as ./run test distributes them (by file) such tests are not tried again.
    """
    if hasattr(config, "workerinput") and hasattr(config, "failures_db"):
        config.failures_db.sock.close()
        config.failures_db = pytest_rerunfailures.StatusDB()


@pytest.hookimpl(wrapper=True)
def pytest_report_to_serializable(report: object) -> Generator[None, dict[str, Any] | None, dict[str, Any] | None]:
    """Send the keywords of a test (names of its folders, markers) only where it failed: half of each of its three reports."""
    sent = yield
    if sent is not None and isinstance(report, pytest.TestReport) and report.passed:
        sent["keywords"] = {}
    return sent


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    item.stash[_BEGUN] = _processor_seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, object, object]:
    """Note a test's CPU seconds, its children's included, for the JUnit file (scripts/test_durations.py reads it)."""
    if call.when == "teardown":
        item.user_properties.append(("cpu_s", f"{_processor_seconds() - item.stash[_BEGUN]:.2f}"))
    return (yield)


def _is_named(config: pytest.Config) -> bool:
    """Whether somebody named a file, a test or a word (-k), and not whole folders."""
    return bool(config.option.keyword or config.option.markexpr or any(not os.path.isdir(arg) for arg in config.args))


def _sampled(config: pytest.Config, items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Yield what is left out of rows marked ``sampled(count)`` by ``./run test`` and of those marked ``sampled(count, ci)`` by CI, evenly
    spread. Who names a file, a test or a word (-k) gets the whole row."""
    place = {"default": 0, "ci": 1}.get(TIER)
    rows: dict[tuple[Path, str], list[pytest.Item]] = {}
    for item in items if place is not None and not _is_named(config) else ():
        if "sampled" in item.keywords and "exhaustive" not in item.keywords:
            rows.setdefault((item.path, getattr(item, "originalname", item.name)), []).append(item)
    for row in rows.values():
        marker = row[0].get_closest_marker("sampled")
        counts = marker.args[place:] if marker else ()
        if not counts:
            continue
        count = min(counts[0], len(row))
        stride = max(
            1, len(row) // count
        )  # moved on within each part, so that of several parameters not always the same values are met
        kept = {number * len(row) // count + number % stride for number in range(count)}
        yield from (item for number, item in enumerate(row) if number not in kept)


def pytest_collection_finish() -> None:
    """No collection of garbage looks at the thousands of tests again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this tier does not run: of whole folders without a word, since a skipped test costs its worker and what collects the
    reports 4 ms; of what somebody named with the reason."""
    sampled = {*_sampled(config, items)}
    left_out = {
        item: reason
        for item in items
        for marker, (tiers, reason) in TIERS.items()
        if marker in item.keywords and TIER not in tiers
    }
    if _is_named(config):
        for item, reason in left_out.items():
            item.add_marker(pytest.mark.skip(reason=reason))
    else:
        leaves = {"default": _is_left_to_ci, "ci": _is_left_to_another_turn}.get(TIER)
        costly = {item for item in items if leaves and leaves(item)}
        gone = {*left_out, *sampled, *costly}
        config.hook.pytest_deselected(items=[item for item in items if item in gone])
        items[:] = [item for item in items if item not in gone]
    first = {str(Path(__file__).parent / name): at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: first.get(str(item.path), len(first)))
