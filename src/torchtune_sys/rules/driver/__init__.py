"""The GPU's driver: does it run, fit itself and fit the GPUs, and may this user use it."""

from __future__ import annotations

from torchtune_sys.model.rule import Rule
from torchtune_sys.rules.driver import access, amd, libraries, services
from torchtune_sys.rules.driver.module import (
    driver_does_not_support_gpu,
    no_nvidia_driver,
    nouveau_loaded,
    nvidia_driver_not_loaded,
    nvidia_module_not_built_for_kernel,
    nvml_driver_library_mismatch,
    open_module_on_pre_turing_gpu,
    proprietary_module_on_blackwell_gpu,
    secure_boot_blocks_module,
)

RULES: tuple[Rule, ...] = (
    no_nvidia_driver,
    nouveau_loaded,
    nvidia_module_not_built_for_kernel,
    secure_boot_blocks_module,
    nvidia_driver_not_loaded,
    nvml_driver_library_mismatch,
    driver_does_not_support_gpu,
    open_module_on_pre_turing_gpu,
    proprietary_module_on_blackwell_gpu,
    *access.RULES,
    *amd.RULES,
    *libraries.RULES,
    *services.RULES,
)
