"""Take a snapshot of the host that the options name, and run the rules that they select."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from torchtune_sys.cli.take_snapshot import begin
from torchtune_sys.cli.terminal import environment
from torchtune_sys.model.rule import Result, Verdict

if TYPE_CHECKING:
    from torchtune_sys.host.base import Host
    from torchtune_sys.host.input.opening import PastedText
    from torchtune_sys.model.snapshot import Snapshot
    from torchtune_sys.rules.profiles import Config, RuleSelection


def judged(
    options: Mapping[str, Any],
    timings: dict[str, float] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
    found: Host | PastedText | None = None,
) -> tuple[Snapshot, tuple[Result, ...], Config]:
    """Return the facts, the results and the configuration. ``meanwhile`` is called while children and files are waited for.

    Raises UnreadableInput, BadConfig, UnknownName.
    """
    finish = begin(options, timings, found=found)
    selected = selected_rules(options)
    meanwhile()
    seen = finish()
    return seen, *judgement(seen, options, selected)


def judgement(
    seen: Snapshot, options: Mapping[str, Any], selected: tuple[RuleSelection, Config] | None = None
) -> tuple[tuple[Result, ...], Config]:
    """Return the results of the rules that the options select, on a host that was looked at, and the configuration. Raises BadConfig, UnknownName."""
    from torchtune_sys import engine

    choice, config = selected or selected_rules(options)
    results = engine.judge(seen, choice.rules, choice.overrides)
    if not any(result.verdict is Verdict.FAIL for result in results):
        return results, config
    from torchtune_sys import consequences

    return consequences.with_consequences(seen, results, choice.heeded, choice.overrides), config


def selected_rules(options: Mapping[str, Any]) -> tuple[RuleSelection, Config]:
    from torchtune_sys.rules import CATALOGUE
    from torchtune_sys.rules.profiles import choose

    config = _config(options["config"])
    return choose(CATALOGUE, config, profile=options["profile"] or "", select=options["select"], ignore=options["ignore"]), config


def _config(path: str | None) -> Config:
    """Return the configuration file that is named by the option or the environment."""
    from torchtune_sys.rules.profiles import Config, parse_config

    place = path or environment().get("TORCHTUNE_SYS_CONFIG", "")
    if not place:
        return Config()
    from torchtune_sys.cli.privilege import tell_of_others
    from torchtune_sys.host.children.apart import text_of
    from torchtune_sys.rules import CATALOGUE

    named = "" if path else " (named by TORCHTUNE_SYS_CONFIG)"
    text = text_of(place, "give a TOML file that can be read", named)  # which has a deadline of its own
    tell_of_others("--config" if path else "TORCHTUNE_SYS_CONFIG", place)
    return parse_config(text, place, CATALOGUE)
