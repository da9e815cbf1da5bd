"""Apply a site's policy file: findings become fatal, warnings, or ignored, also by partition.

fatal = ["warning"]                     # rule ids, causes, families, severities or globs, as --select takes them
warning = ["filesystem-not-answering"]
ignore = ["kernel-old"]

[partition.debug]                       # for jobs of that partition; goes before what stands above
warning = ["error"]

[site-checks]
timeout = 5                             # seconds for each
[site-checks.lustre]
timeout = 10
severity = "warning"                    # what exit status 2 of it means; "fatal" where nothing is said

[rules.disk-full]                       # parameters of rules, as in check's configuration file
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from torchtune_sys.errors import BadConfig, UnknownName, nearest
from torchtune_sys.model.preflight import JOINT_CAUSES, Weight
from torchtune_sys.model.rule import Rule, Severity
from torchtune_sys.preflight.hosts_now import HOSTS_NOW, PAST, STRAGGLER
from torchtune_sys.rules.profiles import Overrides, matching, rule_tables, toml

_LISTS = ("fatal", "warning", "ignore")
_KEYS = (*_LISTS, "partition", "site-checks", "rules")
SITE_TIMEOUT_S = 5.0
NO_GPU = "no-gpu"
"""The cause of a node on which training finds no GPU. No rule's: a host without GPU may be meant to be one."""
LEFTOVERS = "leftover-processes"
CPU_QUOTA = "cpu-quota-on-one-node"
NO_TORCH = "torch-not-installed"
"""No rule's: an interpreter without torch is well, and need not be the one that a job starts."""
OWN_CAUSES = (NO_GPU, NO_TORCH, LEFTOVERS, CPU_QUOTA, STRAGGLER)
"""Causes that pre-flight itself finds; they belong to no rule."""
LEFT_BEHIND = frozenset((LEFTOVERS, "gpu-memory-in-use", "memory-available-low", "dev-shm-full", "oom-kill-logged"))
"""Rules and causes that may tell what the last job left behind."""
BETWEEN_HOSTS = frozenset(
    (
        "hostname-resolves-to-loopback",
        "hostname-unresolvable",
        "gloo-interface-missing",
        "gloo-interface-doubtful",
        "nccl-wrong-interface",
    )
)
"""Rules on how other hosts reach this one: of severity error for a job of several hosts, whatever their own, and of severity warning for one that stays here."""


class SitePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one site check."""

    timeout_s: float = SITE_TIMEOUT_S
    severity: Weight = Weight.FATAL


class PolicyTable(msgspec.Struct, frozen=True, kw_only=True):
    """Selectors by what they make of a finding."""

    fatal: tuple[str, ...] = ()
    warning: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    tables: tuple[PolicyTable, ...] = ()
    """In order of precedence."""
    site: SitePolicy = SitePolicy()
    sites: Mapping[str, SitePolicy] = {}
    params: Overrides = {}

    def weight(self, rule: Rule, nodes: int | None = None, *, hook: bool = False) -> Weight | None:
        """Return what a finding of ``rule`` is for a job of ``nodes``, or in a hook; None where it is ignored. Within a table what names the rule or
        its cause goes before a family, a severity or a glob; of what is left ``ignore`` before ``warning`` before ``fatal``."""
        severity = _severity(rule, nodes or 1)
        fatal = severity is Severity.ERROR
        if rule.id in PAST or (hook and rule.id not in HOSTS_NOW):
            fatal = False
        names = (rule.id, rule.cause or rule.id)
        return self._decided(
            names, lambda selector: _selects(selector, rule, severity), Weight.FATAL if fatal else Weight.WARNING
        )

    def weight_of(self, cause: str, default: Weight) -> Weight | None:
        """Return the weight of a cause that belongs to no rule."""
        return self._decided((cause,), lambda _: False, default)

    def _decided(self, names: tuple[str, ...], selects: Callable[[str], bool], default: Weight) -> Weight | None:
        for table in self.tables:
            lists = (("ignore", table.ignore), ("warning", table.warning), ("fatal", table.fatal))
            for is_named in (lambda selector: selector in names, selects):
                for kind, selectors in lists:
                    if any(map(is_named, selectors)):
                        return None if kind == "ignore" else Weight(kind)
        return default

    def of_site(self, name: str) -> SitePolicy:
        return self.sites.get(name, self.site)


def _severity(rule: Rule, nodes: int) -> Severity:
    """Return the severity of a rule's findings for a job of so many nodes, which selectors name, too."""
    if rule.id in BETWEEN_HOSTS:
        return Severity.ERROR if nodes > 1 else Severity.WARNING
    return rule.severity


def _selects(selector: str, rule: Rule, severity: Severity) -> bool:
    from fnmatch import fnmatchcase

    return selector in (rule.id, rule.cause, rule.family, severity.value) or fnmatchcase(rule.id, selector)


def parse_policy(text: str, name: str, rules: Sequence[Rule], partition: str = "") -> Policy:
    """Return the policy of a TOML file for a job of ``partition``. Raises BadConfig or UnknownName, naming the file and the key."""
    found = toml(text, name)
    _known(found, _KEYS, name)
    partitions = _table(found.get("partition", {}), f"{name}: partition")
    tables = {
        label: _lists(_table(table, f"{name}: partition.{label}"), f"{name}: partition.{label}", rules, _LISTS)
        for label, table in partitions.items()
    }
    site, sites = _sites(_table(found.get("site-checks", {}), f"{name}: site-checks"), name)
    own = _lists({key: found[key] for key in _LISTS if key in found}, name, rules, _LISTS)
    disabled, params = rule_tables(found.get("rules", {}), name, rules)
    first = (tables[partition],) if partition in tables else ()
    return Policy(tables=(PolicyTable(ignore=disabled), *first, own), site=site, sites=sites, params=params)


def _lists(table: Mapping[str, object], place: str, rules: Sequence[Rule], keys: tuple[str, ...]) -> PolicyTable:
    _known(table, keys, place)
    lists: dict[str, tuple[str, ...]] = {}
    causes = {*OWN_CAUSES, *JOINT_CAUSES, *(rule.cause for rule in rules if rule.cause)}
    for key, value in table.items():
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise BadConfig(f"{place}: {key} is a list of rules, not {value!r}", f'{key} = ["gpu-ecc-uncorrectable"]')
        try:
            matching(rules, [item for item in value if item not in causes])
        except UnknownName as error:
            raise UnknownName(f"{place}: {key}: {error.seen}", error.todo) from None
        lists[key] = tuple(value)
    return PolicyTable(**lists)


def _sites(table: Mapping[str, object], name: str) -> tuple[SitePolicy, dict[str, SitePolicy]]:
    place = f"{name}: site-checks"
    general = _site({key: value for key, value in table.items() if not isinstance(value, dict)}, SitePolicy(), place)
    return general, {key: _site(value, general, f"{place}.{key}") for key, value in table.items() if isinstance(value, dict)}


def _site(table: Mapping[str, object], default: SitePolicy, place: str) -> SitePolicy:
    _known(table, ("timeout", "severity"), place)
    timeout, severity = table.get("timeout", default.timeout_s), table.get("severity", default.severity.value)
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not 0 < timeout <= 3600:
        raise BadConfig(f"{place}: timeout is a number of seconds, not {timeout!r}", "timeout = 5")
    if severity not in (Weight.FATAL.value, Weight.WARNING.value):
        raise BadConfig(f"{place}: severity is fatal or warning, not {severity!r}", 'severity = "warning"')
    return SitePolicy(timeout_s=float(timeout), severity=Weight(severity))


def _table(value: object, place: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise BadConfig(f"{place} is a table, not {value!r}", f"[{place.rpartition(': ')[2]}.NAME]")
    return value


def _known(table: Mapping[str, object], keys: Sequence[str], place: str) -> None:
    for key in table:
        if key not in keys:
            raise UnknownName(f"{place}: no such key: {key!r}", nearest(key, keys, f"one of {', '.join(keys)}"))
