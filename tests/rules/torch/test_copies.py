"""What is imported in place of torch and its modules, or is gone from it."""

from __future__ import annotations

import msgspec
import pytest
from altered import FAIL, NA, NOTHING, PASS, altered, result, verdict

from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing


def test_what_lies_beside_a_script_matters_to_a_torch_alone(healthy: Snapshot) -> None:
    rule_id, here = "module-hidden-in-working-directory", ("/w/random.py",)
    assert verdict(altered(healthy, python__hiding_here=here), rule_id) is FAIL
    assert verdict(altered(healthy, python__hiding_here=()), rule_id) is PASS
    assert verdict(altered(healthy, python__hiding_here=NOTHING), rule_id) is NA  # on sys.path anyway
    assert verdict(altered(healthy, python__hiding_here=here, session__env={"PYTHONSAFEPATH": "1"}), rule_id) is NA
    assert verdict(altered(healthy, python__hiding_here=here, python__torch=NOTHING), rule_id) is NA


def test_a_torch_without_its_packages_is_told_unless_it_was_imported(healthy: Snapshot) -> None:
    lost = altered(healthy, python__lost_parts=("nn", "optim"))
    assert "torch/nn, torch/optim" in result(lost, "torch-import-fails").evidence[0].seen


@pytest.mark.parametrize(
    ("release", "env", "told"),
    [("2.13.0", {}, True), ("2.4.1", {}, False), ("2.5.0", {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, False)],
)
def test_a_backend_extension_that_is_gone_is_told_where_torch_loads_it(
    healthy: Snapshot, release: str, env: dict[str, str], told: bool
) -> None:
    assert not isinstance(healthy.python, Missing) and not isinstance(healthy.python.torch, Missing)
    torch = msgspec.structs.replace(healthy.python.torch, version=release)
    lost = altered(
        healthy, python__lost_backends=("npu of torch_npu-2.5, module torch_npu",), python__torch=torch, session__env=env
    )
    assert (verdict(lost, "torch-import-fails") is FAIL) is told


@pytest.mark.parametrize(
    ("lost", "release", "told"),
    [
        (("sympy",), "2.13.0", ["sympy"]),
        (("sympy", "mpmath"), "2.13.0", ["sympy"]),
        (("mpmath",), "2.2.0", ["mpmath"]),
        (("mpmath",), "2.1.2", []),
        (("typing_extensions",), "2.1.2", ["typing-extensions"]),
        (("_ctypes",), "2.1.2", ["a Python with ctypes"]),
    ],
)
def test_modules_that_import_torch_or_its_optimizers_lack(
    healthy: Snapshot, lost: tuple[str, ...], release: str, told: list[str]
) -> None:
    python = healthy.python
    assert not isinstance(python, Missing) and not isinstance(python.torch, Missing)
    torch = msgspec.structs.replace(python.torch, version=release)
    found = result(altered(healthy, python__not_found=lost, python__torch=torch), "torch-import-fails").evidence
    assert [item.wanted.partition(",")[0] for item in found if item.verdict is FAIL] == told
