"""What a plan leaves to be installed: the steps of generate install, for the rules that ask for them, and no other words."""

from __future__ import annotations

import msgspec
import pytest

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model import actions
from torchtune_sys.model.install import InstallOptions
from torchtune_sys.model.plan import Plan
from torchtune_sys.model.plan_context import PlanContext
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.remediation import plan
from torchtune_sys.remediation.install import plan as install
from torchtune_sys.remediation.install.findings import CURED_BY
from torchtune_sys.render import as_json
from torchtune_sys.render import plan as shown
from torchtune_sys.render.layout import Style
from torchtune_sys.rules import CATALOGUE


def planned(seen: Snapshot) -> Plan:
    return plan.plan(seen, engine.judge(seen, CATALOGUE), PlanContext())


def test_nothing_on_a_healthy_host() -> None:
    found = planned(load("healthy"))
    assert found.install == () and found.install_refused == ()
    assert "To install" not in shown.text(found, Style()) and "To install" not in shown.markdown(found)


def test_the_rules_are_those_whose_fix_is_to_install() -> None:
    by_id = {rule.id: rule for rule in CATALOGUE}
    for name in CURED_BY:
        assert any(isinstance(action, actions.Install | actions.Advice) for action in by_id[name].fix), name


@pytest.mark.parametrize("name", sorted(CURED_BY))
def test_each_rule_gets_its_steps_or_a_refusal(name: str) -> None:
    seen = load(f"{name}.fail")
    found = planned(seen)
    own = [item.step for item in found.install if name in item.rules]
    is_a_change = any(name in change.rules for change in found.changes)  # it is there, and its unit only has to start
    assert own or found.install_refused or is_a_change
    extras = ("container-toolkit",) if name == "container-toolkit-missing" else ()
    everything = install.plan(seen, InstallOptions(extras=extras, torch=found.install_torch)).steps
    assert [step for step in everything if step in [item.step for item in found.install]] == [item.step for item in found.install]
    text, page = " ".join(shown.text(found, Style(), verbose=True).split()), shown.markdown(found)
    for step in own:
        assert " ".join(step.title.split()) in text and step.title in page
    assert ("neither plan nor apply installs" in text and "generate script --stages" in text) is bool(
        own or found.install_refused
    )
    told = msgspec.json.decode(as_json.plan(found))["plan"]
    assert len(told["install"]) == len(found.install) and len(told["install_refused"]) == len(found.install_refused)


@pytest.mark.parametrize("name", ["driver-too-old", "gpu-arch-not-in-wheel"])
def test_the_build_of_torch_is_the_one_that_the_finding_names(name: str) -> None:
    seen = load(f"{name}.fail")
    found = planned(seen)
    results = [item for item in engine.judge(seen, CATALOGUE) if item.rule.id == name]
    fixes = [action for result in results for item in result.evidence for action in item.fix]
    (named,) = {action.torch for action in fixes if isinstance(action, actions.Install) and action.torch}
    text = " ".join(shown.text(found, Style()).split())
    assert (
        found.install_torch == named and f" torch {named}, from " in text and f"generate install --torch {named} prints" in text
    )


def test_the_driver_comes_before_what_needs_it_and_asks_for_the_reboot() -> None:
    found = planned(load("no-nvidia-driver.fail"))
    keys = [item.step.key for item in found.install]
    assert keys == ["repository", "headers", "driver", "hold", "daemons"]
    assert [item.step.reboot for item in found.install] == [False] * 4 + [True]
    text = shown.text(found, Style())
    assert text.index("nvidia-driver-pinning-580") < text.index("nvidia-open") < text.index("then start this host again")


def test_a_container_is_told_where_the_driver_is_installed() -> None:
    seen = load("driver-does-not-support-gpu.fail")
    assert isinstance(seen.system, msgspec.Struct)
    found = planned(msgspec.structs.replace(seen, system=msgspec.structs.replace(seen.system, container="docker")))
    assert not found.install
    if found.install_refused:
        assert "container's host" in " ".join(item.way for item in found.install_refused)


def test_apply_makes_none_of_it() -> None:
    """A part of a plan keeps what is to be installed as words; there is no change for it."""
    whole = planned(load("c-compiler-missing.fail"))
    assert plan.part(whole, PlanContext(), lambda change: True).install == whole.install
    assert not any(isinstance(change.action, actions.Install) for change in whole.changes)
