"""The GPU's driver: does it run, fit itself and fit the GPUs, and may this user use it."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
from torchtune_sys.rules.driver import access, amd, generations, granted, intel, libraries, module, services

RULES = rules_of(module, generations, access, granted, amd, libraries, services, intel)
