"""The installed torch and its wheels, against the driver, the GPUs and each other."""

from __future__ import annotations

from torchtune_sys.rules.torch import amp, build_kind, compile, loaded, loader, packages, partners, tools
from torchtune_sys.rules.torch.driver_and_gpu import driver_too_old, gpu_arch_not_in_wheel, ptx_newer_than_driver

RULES = (
    driver_too_old,
    gpu_arch_not_in_wheel,
    ptx_newer_than_driver,
    *build_kind.RULES,
    *packages.RULES,
    *partners.RULES,
    *loader.RULES,
    *compile.RULES,
    *tools.RULES,
    *amp.RULES,
    *loaded.RULES,
)
