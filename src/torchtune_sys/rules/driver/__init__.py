"""The GPU's driver: does it run, fit itself and fit the GPUs, and may this user use it."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.driver import access, amd, generations, intel, libraries, module, services

RULES: tuple[Rule, ...] = (
    *module.RULES,
    *generations.RULES,
    *access.RULES,
    *amd.RULES,
    *libraries.RULES,
    *services.RULES,
    *intel.RULES,
)
