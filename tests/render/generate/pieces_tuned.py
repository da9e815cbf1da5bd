"""What the rules that fail on recorded hosts put into a tuned profile, all together."""

from __future__ import annotations

from functools import cache

from simulate import Seen, recording

from conftest import HOSTS
from torchtune_sys.model.actions import KernelArgument, Sysctl, SysfsWrite
from torchtune_sys.model.plan_context import TunedProfile
from torchtune_sys.remediation.plan.tuned import PlannedOption, options
from torchtune_sys.rules import by_id

KINDS = Sysctl | SysfsWrite | KernelArgument
RULES = {name: rule for name, rule in by_id().items() if any(isinstance(action, KINDS) for action in rule.fix)}
FAILING = sorted(path.stem for path in HOSTS.glob("*.fail*.json") if path.stem.split(".")[0] in RULES)
BASE = TunedProfile(path="/etc/tuned/torchtune-sys/tuned.conf", include=("throughput-performance",))


@cache
def union() -> tuple[tuple[PlannedOption, ...], int]:
    found: dict[tuple[str, str], PlannedOption] = {}
    hosts = 0
    for name in FAILING:
        rule = RULES[name.split(".")[0]]
        seen = Seen(recording(name), [rule])
        made = options(seen.facts, seen.results, seen.ground, BASE)
        hosts += bool(made.options)
        found.update({(option.section, option.name): option for option in made.options})
    return tuple(found.values()), hosts
