"""The role's defaults, argument specs and README: its own variables (gen/data/ansible.toml), those of the command line, one a rule."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from importlib import resources
from itertools import groupby
from typing import Any

import msgspec

from torchtune_sys.gen.collection import options as options_
from torchtune_sys.gen.collection import yaml
from torchtune_sys.gen.collection.yaml import Node
from torchtune_sys.model.rule import Rule
from torchtune_sys.rules import CATALOGUE

PREFIX = "torchtune_sys_"
JUDGING = ("main", "check", "apply", "gather", "report", "rolling")
"""The entry points that judge by the rules."""


_KEPT = """
acted action applied asked begins brought by_apt by_dnf by_package change_failure checked chosen controller_words copied cordoned
disruptive done drain_file drained enabled failure fetched gathered hosts identity is_controller is_drained jobs kept key
key_fingerprints key_place known kubectl_drain kubernetes_mark max_fail_percentage may_be_drained mistyped
not_looked_up pending pinged pip preflight_addresses preflight_begun preflight_job preflight_longest preflight_spread
preflighted ran reboot_useless reboot_why refused_words renewed reported restarts resume_file rules serial slurm slurm_reason
smoked source_here step step_changed stopped to_install told_by_host tool trusted undone wheel_names wheels why with_facts written
"""
"""What plays, tasks and the variables' file call their own, without the prefix. Whatever else begins with it was mistyped."""


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    """Without the prefix."""
    type: str
    doc: str
    entries: tuple[str, ...]
    default: Any = None
    elements: str = ""
    choices: tuple[str, ...] = ()


class Entry(msgspec.Struct, frozen=True):
    name: str
    short: str
    text: str


class PassedOptions(msgspec.Struct, frozen=True):
    """Options of a command that the role passes on."""

    command: str
    prefix: str
    names: tuple[str, ...]
    entries: tuple[str, ...]
    defaults: dict[str, str] = {}
    """Where the role wants another one than the command."""


class RoleTable(msgspec.Struct, frozen=True):
    entry: tuple[Entry, ...]
    variable: tuple[Variable, ...]
    options: tuple[PassedOptions, ...]


@cache
def table() -> RoleTable:
    text = resources.files("torchtune_sys.gen").joinpath("data/ansible.toml").read_text(encoding="utf-8")
    return msgspec.toml.decode(text, type=RoleTable)


def own() -> Iterator[Variable]:
    """Yield every variable but those of the rules: first the role's own, then the command line's."""
    yield from table().variable
    names = (*options_.WORKLOAD, *options_.SELECTION)
    yield from _passed(PassedOptions(command="check", prefix="", names=names, entries=JUDGING))
    for asked in table().options:
        yield from _passed(asked)


def _passed(asked: PassedOptions) -> Iterator[Variable]:
    for option in options_.options(asked.command, asked.names):
        default: Any = [] if option.type == "list" else False if option.type == "bool" else None
        yield Variable(
            name=asked.prefix + option.name,
            type=option.type,
            doc=option.doc,
            entries=asked.entries,
            default=asked.defaults.get(option.name, default),
            elements=option.elements,
            choices=option.choices,
        )


def toggle(rule: Rule) -> str:
    """Return the variable of a rule.

    >>> toggle(next(rule for rule in CATALOGUE if rule.id == "swappiness-high"))
    'torchtune_sys_rule_swappiness_high'
    """
    return f"{PREFIX}rule_{rule.id.replace('-', '_')}"


def defaults() -> str:
    parts = [_default(variable) for variable in own()]
    parts.append(
        "# One a rule: true, false (it does not run and nothing is changed for it), or a dictionary of its parameters.\n"
        + "".join(f"{toggle(rule)}: true  # {rule.severity.value}: {rule.title}\n" for rule in CATALOGUE)
    )
    return "\n".join(parts)


def _default(variable: Variable) -> str:
    """Return the default; what has none stays undefined: null would be no valid value."""
    comment = "".join(f"# {line}\n" for line in yaml.wrapped(_plain(variable.doc), 118))
    if variable.default is None:
        return f"{comment}# {PREFIX}{variable.name}:\n"
    return comment + yaml.dump({PREFIX + variable.name: variable.default})


def known() -> Iterator[str]:
    """Yield the name of every variable that the collection has but those of the rules."""
    yield from (PREFIX + variable.name for variable in own())
    yield from (PREFIX + name for name in _KEPT.split())


def variables() -> str:
    """Return the variables' file: the rules are gathered by their variables' names, so that one that no rule has is refused by the tool, with what was meant."""
    return f"""# The rules as the modules take them, by id: every variable that is called like one.
{PREFIX}rules: >-
  {{{{ dict({PREFIX}rule_names | map('regex_replace', '^{PREFIX}rule_', '') | map('replace', '_', '-')
  | zip(query('ansible.builtin.vars', *{PREFIX}rule_names))) }}}}
{PREFIX}rule_names: "{{{{ query('ansible.builtin.varnames', '^{PREFIX}rule_(?!names$)') }}}}"

# What somebody set that is called like a variable of this role, and is none: a mistyped name would be passed over, and more be changed than was meant.
{PREFIX}mistyped: "{{{{ query('ansible.builtin.varnames', '^{PREFIX}(?!rule_)') | difference({PREFIX}known) | sort }}}}"
{yaml.dump({PREFIX + "known": sorted(known())})}
# The self-contained files that the collection brings.
{PREFIX}brought: "{{{{ query('ansible.builtin.fileglob', role_path ~ '/files/torchtune-sys-*.pyz') }}}}"

# The source as it lies below the directory that ansible-playbook is started in, where it does; else where Ansible looks for files.
{PREFIX}source_here: "{{{{ ({PREFIX}source | expanduser | realpath) if {PREFIX}source | expanduser is exists else {PREFIX}source }}}}"

# What is copied to the host: the source that somebody names, else what the collection brings for the host's processor.
{PREFIX}chosen: >-
  {{{{ {PREFIX}source_here if {PREFIX}source is defined else {PREFIX}brought
  | select('search', '-' ~ ansible_facts.architecture ~ '.pyz$' if {PREFIX}brought | length > 1 else '.pyz$')
  | first | default('', true) }}}}

# Facts of the host that are called like variables of this role. Ansible lets them outrank the inventory: own_variables.yml refuses them.
{PREFIX}told_by_host: "{{{{ ansible_facts | select('match', '^{PREFIX}') | sort }}}}"

# Whether this host is the controller, by any connection: it is never rebooted.
{PREFIX}is_controller: >-
  {{{{ ansible_connection | default('ssh') == 'local' or {PREFIX}identity == {PREFIX}controller_words | join(' ') }}}}
{PREFIX}controller_words:
  - "{{{{ lookup('ansible.builtin.file', '/etc/machine-id', errors='ignore') or '-' }}}}"
  - "{{{{ lookup('ansible.builtin.file', '/proc/sys/kernel/random/boot_id', errors='ignore') or '-' }}}}"
{PREFIX}identity: "{{{{ ({PREFIX}applied | default({PREFIX}to_install)).identity }}}}"

# Whether the host was rebooted for this step before and nothing of it changed since: a further reboot would be made at every run.
{PREFIX}reboot_useless: >-
  {{{{ not {PREFIX}step_changed and {PREFIX}step.title in ({PREFIX}to_install | default({PREFIX}applied)).rebooted }}}}

# Whether what was looked at in check mode could end or stall a job.
{PREFIX}disruptive: >-
  {{{{ {PREFIX}applied.disrupts | length > 0
  or {PREFIX}reboot and {PREFIX}applied.waits.reboot | difference({PREFIX}applied.rebooted) | length > 0
  or {PREFIX}restarts | length > 0
  or {PREFIX}packages and {PREFIX}begins }}}}

# Whether anything is done of the steps of an installation: where the first one is a person's, nothing is, and the host is not drained for it.
{PREFIX}begins: >-
  {{{{ {PREFIX}asked | map(attribute='actions') | map('length') | first | default(0) > 0
  or {PREFIX}reboot and {PREFIX}asked | map(attribute='reboot') | first | default(false) }}}}

# Of the services that may be restarted those that a change waits for: the others would be restarted at every run.
{PREFIX}restarts: >-
  {{{{ {PREFIX}restart_services | select('match', '(systemd-)?(' ~ ({PREFIX}applied.waits.service
  | map('regex_replace', '^.*/([^/]+)[.](service|conf)[.]d/[^/]*$', '\\1') | map('regex_escape') | join('|')) ~ ')([.]service)?$') | list }}}}

# What of an installation cannot be had, and why.
{PREFIX}refused_words: >-
  {{{{ {PREFIX}to_install.refused | map(attribute='what') | zip({PREFIX}to_install.refused | map(attribute='reason')) | map('join', ': ') }}}}

# The pre-flight of all hosts: where each is reached, how long it takes to begin on all of them, and how long the whole may take.
{PREFIX}preflight_addresses: >-
  {{{{ ansible_play_hosts_all | map('extract', hostvars) | map(attribute='{PREFIX}preflight_address', default='')
  | zip(ansible_play_hosts_all | map('extract', hostvars) | map(attribute='ansible_host', default=''), ansible_play_hosts_all)
  | map('select') | map('first') | list }}}}
{PREFIX}preflight_spread: "{{{{ 5 * ((ansible_play_hosts_all | length / (ansible_forks | int)) | round(0, 'ceil')) }}}}"
{PREFIX}preflight_longest: "{{{{ {PREFIX}preflight_budget + 2 * ({PREFIX}preflight_spread | float) + 60 }}}}"

# Who drained the host is asked of Slurm and Kubernetes themselves: an earlier run may have, and failed. What waits for a manual step, or for a reboot that
# is not allowed, stays drained, and fails.
{PREFIX}may_be_drained: "{{{{ {PREFIX}drained | default(false) or {PREFIX}drain | default('') in ['slurm', 'kubernetes'] }}}}"
{PREFIX}is_drained: >-
  {{{{ {PREFIX}drained | default(false) or ({PREFIX}slurm_reason | default({{}})).stdout | default('') is match('torchtune-sys: changed by Ansible')
  or ({PREFIX}kubernetes_mark | default({{}})).stdout | default('') | length > 0 }}}}

# Fingerprints of the primary keys in a file, as gpg --with-colons tells them.
{PREFIX}key_fingerprints: "{{{{ {PREFIX}key.stdout | regex_findall('(?m)^pub:.*\\n(?:grp:.*\\n)?fpr:+([0-9A-F]+):') }}}}"

{PREFIX}drain_file: "{{{{ 'drain_' ~ {PREFIX}drain ~ '.yml' if {PREFIX}drain in ['slurm', 'kubernetes'] else {PREFIX}drain }}}}"
{PREFIX}resume_file: >-
  {{{{ 'resume_' ~ {PREFIX}drain ~ '.yml' if {PREFIX}drain in ['slurm', 'kubernetes'] else {PREFIX}resume | default('') }}}}
"""


def argument_specs() -> str:
    """Return one spec for each entry point. The variables of the rules are none of it: a wrong value would be shown with 300 of them."""
    found: dict[str, Node] = {
        entry.name: {
            "short_description": entry.short,
            "description": [entry.text],
            "options": {PREFIX + variable.name: _spec(variable) for variable in own() if entry.name in variable.entries},
        }
        for entry in table().entry
    }
    return yaml.dump({"argument_specs": found})


def _spec(variable: Variable) -> dict[str, Node]:
    found = options_.described(variable.doc, variable.type, variable.elements, variable.choices)
    if variable.default is not None:
        found["default"] = variable.default
    return found


def readme() -> str:
    entries = "".join(f"| `{entry.name}` | {entry.short}. {entry.text} |\n" for entry in table().entry)
    rows = "".join(_row(variable) for variable in own())
    rules = "".join(
        f"\n### {family}\n\n| variable | severity | defect | parameters |\n|---|---|---|---|\n{''.join(map(_rule, group))}"
        for family, group in groupby(CATALOGUE, key=lambda rule: rule.family)
    )
    return (
        f"<!-- generated by `python -m torchtune_sys.gen write`; edit the rules, the commands or gen/data/ansible.toml instead -->\n\n"
        f"# The role torchtune.sys.torchtune_sys\n\n{_INTRODUCTION}\n"
        f"## Entry points (tasks_from)\n\n| entry point | what it does |\n|---|---|\n{entries}\n"
        f"## Variables\n\n| variable | default | meaning |\n|---|---|---|\n{rows}\n"
        f"## One variable a rule\n\n{_TOGGLES}{rules}"
    )


_INTRODUCTION = """Judges, tunes and proves the hosts that PyTorch trains on, by the tool torchtune-sys on each host: its rules, its journal, its way back.
The collection's README has examples, and docs/ansible.md of the project what is done, as whom, and what happens when something goes wrong.
"""
_TOGGLES = """`true`: the rule runs. `false`: it does not run, and nothing is changed for it. A dictionary: it runs with these parameters,
for example `torchtune_sys_rule_swappiness_high: {max: 20}`.
"""


def _row(variable: Variable) -> str:
    listed = isinstance(variable.default, list)
    default = f"[{', '.join(map(yaml.scalar, variable.default))}]" if listed else yaml.scalar(variable.default)
    default = "" if variable.default is None else f"`{default}`"
    words = _plain(variable.doc) + (f" One of {', '.join(variable.choices)}." if variable.choices else "")
    return f"| `{PREFIX}{variable.name}` | {default} | {_cell(words)} |\n"


def _rule(rule: Rule) -> str:
    params = ", ".join(f"`{param.name}` = `{param.default}`" for param in rule.params)
    return f"| `{toggle(rule)}` | {rule.severity.value} | {_cell(rule.title)} | {_cell(params)} |\n"


def _cell(words: str) -> str:
    return words.replace("|", "\\|").replace("<", "&lt;")


def _plain(doc: str) -> str:
    """Without Ansible's markup.

    >>> _plain("V(absent) removes it, as O(state) says")
    'absent removes it, as state says'
    """
    return re.sub(r"\b[VOC]\(([^)]*)\)", r"\1", doc)
