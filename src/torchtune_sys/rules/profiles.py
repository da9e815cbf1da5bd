"""Select rules and set their parameters, from options, profiles and the configuration file.

A profile or a file overrides parameters that rules declare, and selections; nothing else. A name that does not exist
is an error with a suggestion, since a misspelt rule that is silently not ignored (or not asked) does harm.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from torchtune_sys.errors import BadConfig, UnknownName, nearest
from torchtune_sys.model.rule import Param, Rule, Severity

Value = int | float | str | bool
Overrides = dict[str, dict[str, Value]]
"""Rule id → parameter name → value."""


MOST_CHARACTERS = 64 << 10
"""Of a configuration or policy file: one that names each rule with all its parameters has 40 KiB."""

_MOST_DOTS = 256
"""In a line of such a file: a key of 30,000 parts takes tomllib minutes."""


class Profile(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of host: what it need not be asked, and what is normal there."""

    doc: str
    ignore: tuple[str, ...] = ()
    params: Mapping[str, Mapping[str, Value]] = {}


_OTHER_HOSTS = (
    "rdma",
    "arp-answers-on-any-interface",
    "ethernet-mtu-small",
    "gloo-interface-doubtful",
    "hostname-unresolvable",
    "memlock-limit-finite",
    "nccl-interface-doubtful",
    "nccl-uneven-networks",
    "neighbour-table-small",
    "network-interrupts-far",
    "rp-filter-strict",
    "somaxconn-low",
    "tcp-buffer-ceiling-low",
    "tcp-slow-start-after-idle",
)
"""What matters only where several hosts train together."""
_HOST_ONLY = (
    "sysctl",
    "cpu-boost-disabled",
    "cpu-frequency-capped",
    "cpu-governor-*",
    "cpu-power-capped",
    "cpus-offline",
    "gpu-persistence-mode-off",
    "hdd-scheduler-none",
    "hugepages-hoard-memory",
    "kernel-old",
    "logind-removes-ipc",
    "numa-node-offline",
    "nvme-scheduler-not-none",
    "oom-kills-since-boot",
    "read-ahead-small",
    "thp-defrag-always",
    "thp-never",
)
"""What a container shows but cannot change."""

PROFILES: dict[str, Profile] = {
    "workstation": Profile(
        doc="one person's machine with a desktop: it shares its GPU with the screen, and saves power",
        ignore=(
            *_OTHER_HOSTS,
            "cpu-governor-not-performance",
            "gpu-models-mixed",
            "gpu-persistence-mode-off",
            "gpu-power-limit-half",
            "gpu-power-limit-lowered",
        ),
        params={"gpu-memory-in-use": {"threshold_mib": 4096}},
    ),
    "single-node": Profile(doc="a server that trains alone: nothing about other hosts", ignore=_OTHER_HOSTS),
    "cluster": Profile(
        doc="one of many hosts that train together: more ranks, files and checkpoints",
        params={
            "cpus-too-few-for-gpus": {"per_gpu": 8},
            "dev-shm-small": {"min_mib": 8192},
            "disk-space-low": {"minimum_gib": 100},
            "nofile-limit-too-low": {"min_hard": 65536},
        },
    ),
    "container": Profile(doc="inside a container: nothing that only its host can change", ignore=_HOST_ONLY),
    "ci": Profile(doc="a build machine: what breaks or slows training, no advice", ignore=("advice",)),
}


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """What a configuration file says."""

    profile: str = ""
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    fail_on: str = ""
    disabled: tuple[str, ...] = ()
    params: Overrides = {}


class RuleSelection(msgspec.Struct, frozen=True, kw_only=True):
    """The rules to judge by, and the parameters that differ from their defaults."""

    rules: tuple[Rule, ...]
    overrides: Overrides
    heeded: tuple[Rule, ...]
    """Those and the others that nobody left out: a fix of what is asked may not bring about what they find."""


_SEVERITIES = tuple(level.value for level in Severity)
"""Right as selectors even where no rule has them."""
FAIL_ON = ("error", "warning", "advice", "never")


def choose(
    rules: Sequence[Rule], config: Config, *, profile: str = "", select: Iterable[str] = (), ignore: Iterable[str] = ()
) -> RuleSelection:
    """Return the rules and parameters that hold. Raises UnknownName.

    What is said on the command line replaces the file's ``select`` and adds to its ``ignore``. A rule that is selected by its
    own id is asked although a profile or the file leaves it out; what the command line ignores is never asked.
    """
    kind = profile_of(profile or config.profile)
    asked, refused = _items(select) or list(config.select), _items(ignore)
    left_out = {*matching(rules, (*kind.ignore, *config.ignore, *config.disabled))} - {*asked}
    left_out |= matching(rules, refused)
    wanted = matching(rules, asked) if asked else {rule.id for rule in rules}
    chosen = tuple(rule for rule in rules if rule.id in wanted and rule.id not in left_out)
    if not chosen and rules:
        raise UnknownName("no rules are left", "--ignore, the profile or the configuration excludes everything that is selected")
    known = {rule.id for rule in rules}
    params: Overrides = {rule_id: dict(values) for rule_id, values in kind.params.items() if rule_id in known}
    for rule_id, values in config.params.items():
        params[rule_id] = {**params.get(rule_id, {}), **values}
    heeded = tuple(rule for rule in rules if rule.id not in left_out)
    return RuleSelection(rules=chosen, overrides=params, heeded=heeded)


def families_asked(rules: Sequence[Rule], config: Config, select: Iterable[str]) -> tuple[str, ...]:
    """Return the families that are selected by name; torch's where nothing is selected, since without it nothing of training was judged."""
    asked = _items(select) or config.select
    families = {rule.family for rule in rules}
    return tuple(name for name in asked if name in families) if asked else ("torch",)


def profile_of(name: str) -> Profile:
    """Return the profile of that name; without a name, one that changes nothing. Raises UnknownName."""
    if not name:
        return Profile(doc="")
    if name not in PROFILES:
        raise UnknownName(f"no profile is called {name!r}", _suggest(name, PROFILES))
    return PROFILES[name]


def matching(rules: Sequence[Rule], selectors: Iterable[str]) -> set[str]:
    """Return the ids of the rules that are named by id, family, severity or glob. Raises UnknownName for a selector that names none."""
    found: set[str] = set()
    for selector in selectors:
        named = {rule.id for rule in rules if selector in (rule.id, rule.family, rule.severity.value)}
        if not named and any(sign in selector for sign in "*?["):
            from fnmatch import fnmatchcase

            named = {rule.id for rule in rules if fnmatchcase(rule.id, selector)}
        if not named and selector not in _SEVERITIES:
            names = [*(rule.id for rule in rules), *dict.fromkeys(rule.family for rule in rules), *_SEVERITIES]
            raise UnknownName(f"no rule, family or severity is called {selector!r}", _suggest(selector, names))
        found |= named
    return found


def rule_named(rules: Sequence[Rule], name: str) -> Rule:
    """Return the rule with that id. Raises UnknownName."""
    for rule in rules:
        if rule.id == name:
            return rule
    raise UnknownName(f"no rule is called {name!r}", _suggest(name, [rule.id for rule in rules]))


def parse_config(text: str, name: str, rules: Sequence[Rule]) -> Config:
    """Return what a configuration file (TOML) says. Raises BadConfig or UnknownName, naming the file and the key."""
    found = toml(text, name)
    keys = ("profile", "select", "ignore", "fail-on", "rules")
    for key in found:
        if key not in keys:
            raise UnknownName(f"{name}: no such key: {key!r}", _suggest(key, keys))
    profile, fail_on = found.get("profile", ""), found.get("fail-on", "")
    if not isinstance(profile, str):
        raise BadConfig(f"{name}: profile is a name, not {profile!r}", f"one of {', '.join(PROFILES)}")
    profile_of(profile)
    if fail_on not in ("", *FAIL_ON):
        raise BadConfig(f"{name}: fail-on is not {fail_on!r}", f"one of {', '.join(FAIL_ON)}")
    select, ignore = (_names(found.get(key, []), key, name) for key in ("select", "ignore"))
    matching(rules, (*select, *ignore))
    disabled, params = rule_tables(found.get("rules", {}), name, rules)
    return Config(profile=profile, select=select, ignore=ignore, fail_on=str(fail_on), disabled=disabled, params=params)


def toml(text: str, name: str) -> dict[str, Any]:
    """Return what a TOML file says. Raises BadConfig, naming the file; also for one that would take Python's parser minutes: its time grows with the
    square of the size where tables lie in each other."""
    if len(text) > MOST_CHARACTERS:
        raise BadConfig(f"{name}: longer than {MOST_CHARACTERS >> 10} KiB", "a configuration of a few lines")
    if any(line.count(".") > _MOST_DOTS for line in text.splitlines()):
        raise BadConfig(
            f"{name}: a line with more than {_MOST_DOTS} dots", "tables of rules are nested two deep, like [rules.disk-full]"
        )
    try:
        return dict(msgspec.toml.decode(text))
    except ImportError:
        raise BadConfig(f"{name}: reading TOML on Python 3.10 needs the package tomli", "pip install tomli") from None
    except RecursionError:
        raise BadConfig(f"{name}: not valid TOML: nested too deeply") from None
    except ValueError as error:
        raise BadConfig(f"{name}: not valid TOML: {error}", "its lines are like NAME = VALUE (toml.io)") from None


def rule_tables(tables: object, name: str, rules: Sequence[Rule]) -> tuple[tuple[str, ...], Overrides]:
    """Return the rules that are disabled below ``[rules]``, and the parameters that are set there. Raises BadConfig or UnknownName."""
    if not isinstance(tables, dict):
        raise BadConfig(f"{name}: rules is a table of rules", "[rules.some-rule-id]")
    disabled: list[str] = []
    params: Overrides = {}
    for rule_id, table in tables.items():
        rule = rule_named(rules, rule_id)
        if not isinstance(table, dict):
            raise BadConfig(f"{name}: rules.{rule_id} is a table, not {table!r}", f"[rules.{rule_id}]")
        for key, value in table.items():
            if key == "enabled":
                if not isinstance(value, bool):
                    raise BadConfig(f"{name}: rules.{rule_id}.enabled is true or false, not {value!r}")
                disabled.extend([] if value else [rule_id])
            else:
                params.setdefault(rule_id, {})[key] = _checked(_param(rule, key, name), value, f"{name}: rules.{rule_id}.{key}")
    return tuple(disabled), params


def _param(rule: Rule, key: str, name: str) -> Param:
    for param in rule.params:
        if param.name == key:
            return param
    names = ["enabled", *(param.name for param in rule.params)]
    raise UnknownName(f"{name}: {rule.id} has no parameter {key!r}", _suggest(key, names))


_TYPES = {bool: "true or false", int: "a whole number", float: "a number", str: "a string"}


def _checked(param: Param, value: object, place: str) -> Value:
    """``value`` in the type of the parameter's default. Raises BadConfig."""
    kind = type(param.default)
    good = type(value) is kind or (kind is float and type(value) is int)
    if not good or value != value or not isinstance(value, (int, float, str)):  # TOML has nan
        raise BadConfig(f"{place} is {_TYPES[kind]}, not {value!r}", f"{param.doc} (default: {param.default!r})")
    return float(value) if kind is float and not isinstance(value, str) else value


def _names(value: object, key: str, name: str) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
        raise BadConfig(f"{name}: {key} is a list of names, not {value!r}", f'{key} = ["network", "*-swap-*"]')
    return tuple(_items(values))


def _items(values: Iterable[str]) -> list[str]:
    return [item.strip() for value in values for item in value.split(",") if item.strip()]


def _suggest(name: str, names: Iterable[str]) -> str:
    known = list(dict.fromkeys(names))
    return nearest(name, known, f"one of {', '.join(known)}" if len(known) <= 12 else "torchtune-sys rules lists them", 3)
