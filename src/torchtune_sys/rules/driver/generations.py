"""Rules on the generations of GPUs that NVIDIA's kernel module serves: by its branch, and by its flavour (open or proprietary)."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.knowledge.cuda import LAST_OF_DISPLAYS
from torchtune_sys.model.actions import Install, Needs
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import NotApplicable, need
from torchtune_sys.model.version import version
from torchtune_sys.rules.driver import common as driver_state


@rule(
    id="driver-does-not-support-gpu",
    title="This driver branch does not support this GPU",
    severity=Severity.ERROR,
    cause="driver-does-not-support-gpu",
    fix=(
        Install(
            text="install a driver branch that supports the GPU (580 for Maxwell, Pascal and Volta; 470 for Kepler)",
            needs=Needs.REBOOT,
        ),
    ),
)
def driver_does_not_support_gpu(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """This driver branch no longer supports the GPU's generation, or does not support it yet.

    Why it matters
        The module loads but ignores the GPU ("No devices were found"), or refuses to load. R580 is the last branch for
        GPUs before Turing, R470 the last for Kepler.

    When to leave it
        Another GPU of this host is used for training. One of Kepler or before beside GPUs that the driver serves is not reported.

    References
        https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/ (13.0: Maxwell, Pascal, Volta)
        README of the driver, appendix A (supported GPUs)
    """
    found = driver_state.architectures(s)
    served = driver_state.seen_by_nvml(s)
    if not found:
        raise NotApplicable("the generation of these GPUs is not in the tool's tables")
    number = need(driver_state.driver_version(s))
    branch = (version(number) or (0,))[0]
    displays = driver_state.display_cards(s)
    for address, arch in found.items():
        too_new = arch.last_branch is not None and branch > arch.last_branch
        too_old = arch.first_branch is not None and branch < arch.first_branch
        limit = f"at most {arch.last_branch}" if too_new else (f"{arch.first_branch} or later" if arch.first_branch else "")
        display = bool(served) and arch.last_branch is not None and arch.last_branch <= LAST_OF_DISPLAYS
        is_left_alone = address in served or address in displays or display
        bad = branch > 0 and (too_new or too_old) and not is_left_alone
        yield Evidence(
            subject=f"GPU {address} ({arch.name})",
            seen=f"driver {number}",
            wanted=f"branch {limit}" if limit else "",
            verdict=Verdict.FAIL if bad else Verdict.PASS,
            source=arch.source,
        )


@rule(
    id="open-module-on-pre-turing-gpu",
    title="The open kernel module does not support this GPU",
    severity=Severity.ERROR,
    cause="open-module-on-pre-turing-gpu",
    fix=(Install(text="install the proprietary kernel module (branch 580 or earlier)", needs=Needs.REBOOT),),
)
def open_module_on_pre_turing_gpu(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """GPUs before Turing lack the GSP processor that the open kernel module needs.

    Why it matters
        The module loads but ignores the GPU: "No devices were found".

    When to leave it
        Another GPU of this host is used for training.

    References
        README of the driver, chapter "Open Linux Kernel Modules"
    """
    yield from _flavour(s, "open", "no", "the proprietary module")


@rule(
    id="proprietary-module-on-blackwell-gpu",
    title="The proprietary kernel module does not support this GPU",
    severity=Severity.ERROR,
    cause="driver-does-not-support-gpu",
    fix=(Install(text="install the open kernel module (nvidia-open, nvidia-driver-…-open)", needs=Needs.REBOOT),),
)
def proprietary_module_on_blackwell_gpu(s: Snapshot, p: Params) -> Iterator[Evidence]:
    """Only the open kernel module supports Blackwell and later generations.

    Why it matters
        The module loads, but logs that the GPU requires the open kernel modules; CUDA programs do not see the GPU.

    When to leave it
        Another GPU of this host is used for training.

    References
        README of the driver, chapter "Open Linux Kernel Modules"
        https://developer.nvidia.com/blog/nvidia-transitions-fully-towards-open-source-gpu-kernel-modules/
    """
    yield from _flavour(s, "proprietary", "only", "the open module")


def _flavour(s: Snapshot, flavour: str, marked: str, wanted: str) -> Iterator[Evidence]:
    """Fails for GPUs that are ``marked`` in the table, while a module of this flavour runs and NVML does not show them."""
    found = {address: arch for address, arch in driver_state.architectures(s).items() if arch.open_module == marked}
    if not found:
        raise NotApplicable("no GPU of such a generation")
    driver_state.require_module(s)
    seen = need(need(s.driver).module_flavour)
    served = driver_state.seen_by_nvml(s) | driver_state.display_cards(s)
    for address, arch in found.items():
        yield Evidence(
            subject=f"GPU {address} ({arch.name})",
            seen=f"the {seen} module",
            wanted=wanted,
            verdict=Verdict.FAIL if seen == flavour and address not in served else Verdict.PASS,
            source="/proc/driver/nvidia/version",
        )
