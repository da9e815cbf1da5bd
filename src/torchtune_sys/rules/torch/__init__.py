"""The installed torch and its wheels, against the driver, the GPUs and each other."""

from __future__ import annotations

from torchtune_sys.model.rule import rules_of
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

RULES = rules_of(
    driver_and_gpu, cpu_only, build_kind, packages, copies, partners, loader, compile, tools, ptxas, built_here, amp, loaded
)
