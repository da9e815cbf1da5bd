"""The stages that provision a bare host: install, tune, smoke test."""

from __future__ import annotations

import msgspec

from torchtune_sys.model.install import InstallRefused, InstallStep, PythonEnvironment, Wheel
from torchtune_sys.model.plan import Plan

STAGES = ("install", "tune", "smoke")
"""In their order."""


class Provision(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    origin: str
    system: str
    stages: tuple[str, ...]
    """Of :data:`STAGES`, in that order."""
    steps: tuple[InstallStep, ...] = ()
    """What the stage install does, in order; none of them optional."""
    by_hand: tuple[InstallStep, ...] = ()
    """Steps of a person without which the others make no sense."""
    refused: tuple[InstallRefused, ...] = ()
    """What cannot be had, where nothing makes sense without it."""
    notes: tuple[str, ...] = ()
    """What is left out, and what is there already."""
    wheel: Wheel | None = None
    environment: PythonEnvironment | None = None
    """What the stage install makes; None where torch is there."""
    tune: Plan | None = None
    python: str
    """The interpreter that trains."""
    device: str
    """What the smoke test must train on: ``cuda``, ``cpu``, or ``auto`` where either would do."""
    offline: str = ""
    """A folder on that host with packages and wheels; ``""`` where it has a network."""
