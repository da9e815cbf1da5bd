"""Clocks, heat, memory modules and services, each mark from both sides."""

from __future__ import annotations

import msgspec

from conftest import load
from torchtune_sys import engine
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.rules.hardware_services import service_takes_resources

DENIED = Missing(Why.DENIED, "test")


def test_a_host_of_whose_memory_nothing_is_known_may_have_a_service_that_takes_much_of_it() -> None:
    seen = load("service-takes-resources.fail.memory")
    assert not isinstance(seen.memory, Missing)
    blind = msgspec.structs.replace(seen, memory=msgspec.structs.replace(seen.memory, total_bytes=DENIED))
    assert engine.judge(blind, (service_takes_resources,))[0].verdict is Verdict.UNKNOWN
