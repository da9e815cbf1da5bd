"""Which of a GPU's messages is the cause, what followed from it, when it is over, and who else explains it (kernel_driver)."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from xid_hosts import (
    DAY,
    DENIED,
    NA,
    NOTHING,
    NOW,
    ONE,
    STRANGE,
    T,
    changed,
    event,
    judged,
    subjects,
    with_lost,
)

from conftest import judge, load
from torchtune_sys.model.facts.kernel import KernelEvent
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.snapshot import Snapshot

# --- what the driver says when it starts


TOLD = {
    "gpu-bar-not-assigned": ("gpu-bar",),
    "driver-ignores-gpu": ("gpu-legacy", "gpu-unsupported", "gpu-needs-open"),
    "gpu-needs-proprietary-module": ("gpu-needs-proprietary",),
    "gsp-firmware-missing": ("gsp-firmware",),
}


@pytest.mark.parametrize(("rule_id", "kind"), [(rule_id, kind) for rule_id, kinds in TOLD.items() for kind in kinds])
def test_what_the_driver_refuses_when_it_starts(healthy: Snapshot, rule_id: str, kind: str) -> None:
    blamed = [f"GPU at {STRANGE}"]
    assert subjects(healthy, rule_id, event(kind, STRANGE)) == blamed
    assert subjects(healthy, rule_id, event(kind, STRANGE), event("driver-load", "", T + 30)) == blamed  # of that start itself
    assert subjects(healthy, rule_id, event(kind, STRANGE), event("driver-load", "", T + 100)) == []  # mended since
    assert subjects(healthy, rule_id, event(kind, ONE)) == []  # the driver serves it by now
    assert subjects(healthy, rule_id, event(kind, ONE), event(kind, STRANGE)) == blamed
    assert subjects(with_lost(healthy, ONE), rule_id, event(kind, ONE)) == ["GPU 3 (0000:61:00.0)"]
    assert subjects(healthy, rule_id, event(kind, "")) == ["a GPU"]
    assert subjects(healthy, rule_id, event(kind, ""), event(kind, STRANGE)) == blamed  # the same, without the address
    assert subjects(healthy, rule_id, event(kind, STRANGE), event(kind, ""), event(kind, "0000:fe:00.0")) == [
        *blamed,
        "GPU at 0000:fe:00.0",
    ]
    assert subjects(healthy, rule_id, event(kind, STRANGE, NOW - 8 * DAY)) == []
    others = [event(other, STRANGE) for kinds in TOLD.values() for other in kinds if other not in TOLD[rule_id]]
    assert subjects(healthy, rule_id, *others) == []
    assert subjects(changed(healthy, "gpu", devices=DENIED), rule_id, event(kind, ONE)) == [f"GPU at {ONE}"]
    assert subjects(msgspec.structs.replace(healthy, gpu=DENIED), rule_id, event(kind, ONE)) == [f"GPU at {ONE}"]


@pytest.mark.parametrize(
    ("branch", "served", "blamed"), [("470.xx", True, 0), ("390.157", True, 0), ("580.xx", True, 1), ("470.xx", False, 1)]
)
def test_a_card_for_a_display_beside_gpus_that_train(healthy: Snapshot, branch: str, served: bool, blamed: int) -> None:
    seen = healthy if served else changed(healthy, "gpu", devices=())
    assert len(subjects(seen, "driver-ignores-gpu", event("gpu-legacy", STRANGE, who=branch))) == blamed


def bound(at: float | None = T, who: str = "nouveau", text: str = "NVIDIA GA102", **more: Any) -> KernelEvent:
    return event("gpu-bound", STRANGE, at, who=who, text=text, **more)


@pytest.mark.parametrize(
    ("events", "held"),
    [
        ([bound()], True),
        ([bound(who="vfio")], False),
        ([bound(), event("driver-load", "", T + 1)], False),  # NVIDIA's driver was loaded after it
        ([bound(), event("driver-load", "", T)], True),
        ([bound(), event("driver-load", "", T - 1)], True),
        ([bound(), event("boot", "", T + 1)], True),
        ([bound(), event("driver-load", "", None)], False),  # nobody knows when
        ([bound(None), event("driver-load", "", T)], False),
        ([bound(text="GPU is already bound to nouveau."), event("driver-load", "", T + 1)], True),  # that load was in vain
        ([bound(), bound(text="GPU is already bound to nouveau."), event("driver-load", "", T + 1)], True),
        ([bound(at=T, last_s=T + 9), event("driver-load", "", T + 5)], True),
        ([], False),
    ],
)
def test_gpus_that_nouveau_took(healthy: Snapshot, events: list[KernelEvent], held: bool) -> None:
    rule_id = "other-driver-holds-gpu"
    for blind in (changed(healthy, "driver", nouveau_loaded=DENIED), msgspec.structs.replace(healthy, driver=DENIED)):
        assert subjects(blind, rule_id, *events) == [f"GPU at {STRANGE}"] * held
    assert judged(healthy, rule_id, *events).verdict is NA  # what is loaded now is known


def test_clients_of_another_version(healthy: Snapshot) -> None:
    rule_id = "driver-mismatch-logged"
    told = event("api-mismatch", "", who="550.54.14", text="API mismatch: the client has 535, but")
    blind = changed(healthy, "driver", module_version=DENIED)
    assert subjects(blind, rule_id, told) == ["kernel module 550.54.14"]
    assert subjects(blind, rule_id, msgspec.structs.replace(told, who="")) == ["kernel module"]
    assert subjects(blind, rule_id, told, msgspec.structs.replace(told, who="2")) == ["kernel module 2"]
    assert subjects(blind, rule_id, told, event("driver-load", "", T + 100)) == []
    assert subjects(blind, rule_id, event("api-mismatch", "", NOW - 8 * DAY)) == []
    assert subjects(blind, rule_id, event("gpu-bar", "")) == []
    for other in (changed(healthy, "driver", library_version=NOTHING), msgspec.structs.replace(healthy, driver=DENIED)):
        assert subjects(other, rule_id, told) == ["kernel module 550.54.14"]
    assert judged(healthy, rule_id, told).verdict is NA  # the versions of now are known
    assert subjects(healthy, rule_id) == []
    (finding,) = judged(blind, rule_id, msgspec.structs.replace(told, first_s=None, last_s=None)).evidence
    assert finding.seen == "API mismatch: the client has 535"


def test_modules_that_were_refused(healthy: Snapshot) -> None:
    rule_id, told = "module-signature-refused", event("module-refused", "", who="nvidia")
    seen = changed(healthy, "driver", module_loaded=False, secure_boot=DENIED)
    assert subjects(seen, rule_id, told) == ["nvidia"]
    assert subjects(seen, rule_id, told, event("module-refused", "", who="x"), event("module-refused", ""), told) == ["nvidia, x"]
    assert subjects(seen, rule_id, event("module-refused", "")) == ["a module"]
    assert subjects(seen, rule_id, event("module-refused", "", NOW - 8 * DAY)) == []
    assert subjects(msgspec.structs.replace(healthy, driver=DENIED), rule_id, told) == ["nvidia"]
    for facts in ({"nvidia_devices": ()}, {"nvidia_devices": NOTHING}, {"module_loaded": True}, {"secure_boot": True}):
        other = changed(seen, "driver", **facts)
        assert judged(other, rule_id, told).verdict is NA
        assert subjects(other, rule_id) == []
    for facts in ({"nvidia_devices": DENIED}, {"module_loaded": DENIED}, {"secure_boot": False}):
        assert subjects(changed(seen, "driver", **facts), rule_id, told) == ["nvidia"]


def test_a_refused_module_of_an_amd_gpu() -> None:
    told = {
        "source": "/dev/kmsg",
        "lines": ["[    5.000000] Loading of unsigned module is rejected"],
        "now_s": 60.0,
        "booted": 1.79e9,
        "from_s": 0.0,
        "whole": True,
    }
    found = judge(load("amdgpu-not-loaded.fail", answers={"kernel-log": told}))
    assert found["module-signature-refused"].verdict is Verdict.FAIL
    served = judge(load("base-amd-gpu", answers={"kernel-log": told}))
    assert served["module-signature-refused"].verdict is NA


def test_amds_driver_may_have_the_gpu_by_now() -> None:
    def verdict(base: str, address: str) -> Verdict:
        line = f"[    9.000000] amdgpu {address}: amdgpu: Fatal error during GPU init"
        told = {"source": "/dev/kmsg", "lines": [line], "now_s": 60.0, "booted": 1.79e9, "from_s": 0.0, "whole": True}
        return judge(load(base, answers={"kernel-log": told}))["amdgpu-initialisation-failed"].verdict

    assert verdict("base-amd-gpu", "0000:1b:00.0") is Verdict.PASS
    assert verdict("amdgpu-not-loaded.fail", "0000:1b:00.0") is Verdict.FAIL


def test_faults_of_the_iommu(healthy: Snapshot) -> None:
    rule_id = "iommu-fault-of-gpu"
    assert subjects(healthy, rule_id, event("iommu-fault", ONE)) == ["GPU 3 (0000:61:00.0)"]
    assert subjects(healthy, rule_id, event("iommu-fault", STRANGE)) == []
    assert subjects(healthy, rule_id, event("iommu-fault", STRANGE), event("iommu-fault", ONE)) == ["GPU 3 (0000:61:00.0)"]
    named = event("iommu-fault", STRANGE, text="nvidia 0000:ff:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT]")
    assert subjects(healthy, rule_id, named) == [f"GPU at {STRANGE}"]
    assert subjects(healthy, rule_id, event("iommu-fault", ONE, NOW - 8 * DAY), event("gpu-bar", ONE)) == []
    for blind in (changed(healthy, "driver", nvidia_devices=DENIED), msgspec.structs.replace(healthy, driver=DENIED)):
        assert subjects(blind, rule_id, event("iommu-fault", ONE)) == []
        assert subjects(blind, rule_id, named) == [f"GPU at {STRANGE}"]
