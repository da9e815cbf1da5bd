"""The installed torch and its wheels, against the driver, the GPUs and each other."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.torch import (
    amp,
    build_kind,
    built_here,
    compile,
    copies,
    cpu_only,
    driver_and_gpu,
    loaded,
    loader,
    packages,
    partners,
    ptxas,
    tools,
)

RULES: tuple[Rule, ...] = (
    *driver_and_gpu.RULES,
    *cpu_only.RULES,
    *build_kind.RULES,
    *packages.RULES,
    *copies.RULES,
    *partners.RULES,
    *loader.RULES,
    *compile.RULES,
    *tools.RULES,
    *ptxas.RULES,
    *built_here.RULES,
    *amp.RULES,
    *loaded.RULES,
)
