"""A recorded host after a plan was carried out: the values and files laid over the recording, to be probed again."""

from __future__ import annotations

from typing import Any

from conftest import HOSTS
from torchtune_sys import engine
from torchtune_sys.host.recorded import RecordedHost, load_recording, merged
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.plan import Plan, Value
from torchtune_sys.model.plan_context import PlanContext
from torchtune_sys.model.rule import Result
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing
from torchtune_sys.probes.plan_context import probe as ground
from torchtune_sys.remediation import plan
from torchtune_sys.rules import CATALOGUE

Recording = dict[str, Any]
BY_SUBJECT = ("hdd-scheduler-none.fail", "nvme-scheduler-not-none.fail", "read-ahead-small.fail", "shmmax-lowered.fail")
"""Failing hosts whose rules name what to change with the evidence only (tests/render/generate/test_script_hosts.py looks for others)."""


def recording(name: str, **overlay: Any) -> Recording:
    return merged(load_recording(str(HOSTS / f"{name}.json")), overlay)


class Seen:
    """One look at a recording: facts, results, ground and plan."""

    def __init__(self, data: Recording, rules: Any = CATALOGUE) -> None:
        self.data = data
        self.host = RecordedHost(data, "recording")
        told: dict[str, Any] = {key: tuple(v) if isinstance(v, list) else v for key, v in data.get("intent", {}).items()}
        intent = Workload(**told)
        self.facts: Snapshot = engine.snapshot(self.host, intent, timeout_s=20)
        self.results: tuple[Result, ...] = engine.judge(self.facts, rules)
        paths, files = plan.places(self.results)
        self.ground: PlanContext = ground.probe(self.host, paths, files)
        self.plan: Plan = plan.plan(self.facts, self.results, self.ground)

    def result(self, rule: str) -> Result:
        return next(result for result in self.results if result.rule.id == rule)

    def value_paths(self, step: Value) -> list[str]:
        if not step.is_pattern:
            return [step.path]
        found = self.ground.values[step.path]
        return sorted(found) if isinstance(found, dict) else []


def after(seen: Seen) -> Recording:
    """The recording with everything done that the plan says, as the kernel would show it."""
    files: dict[str, Any] = {file.path: file.content for file in seen.plan.files}
    for change in seen.plan.changes:
        for step in change.steps:
            if isinstance(step, Value):
                for path in seen.value_paths(step):
                    real = seen.host.real(path)  # below /sys names are links
                    files[path if isinstance(real, Missing) else real] = shown(str(seen.host.text(path)), step.value)
                if step.counterpart:
                    files[step.counterpart] = "0\n"
    return merged(seen.data, {"files": files})


def shown(before: str, value: str) -> str:
    """What a file shows once ``value`` was written: a choice keeps its list."""
    if "[" not in before:
        return value + "\n"
    return " ".join(f"[{word}]" if word == value else word for word in before.replace("[", "").replace("]", "").split()) + "\n"
