"""The part of the torch child that looks at PCIe, with a stand-in for torch: what it copies, and that it cleans up."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from torchtune_sys.host.children import torch_child

look: Any = torch_child


class Cuda:
    """Remembers what is done; each copy takes a millisecond."""

    def __init__(self, **properties: Any) -> None:
        self.properties = types.SimpleNamespace(**properties)
        self.copies = 0
        self.freed = False

    def device(self, index: int) -> Any:
        import contextlib

        return contextlib.nullcontext()

    def get_device_properties(self, index: int) -> Any:
        return self.properties

    def synchronize(self) -> None: ...

    def empty_cache(self) -> None:
        self.freed = True

    def Event(self, enable_timing: bool) -> Any:
        return types.SimpleNamespace(record=lambda: None, elapsed_time=lambda other: float(self.copies - 1))


def torch_with(cuda: Cuda) -> Any:
    def empty(size: int, **_: Any) -> Any:
        def copy(source: Any, non_blocking: bool) -> None:
            cuda.copies += 1

        return types.SimpleNamespace(copy_=copy, size=size)

    return types.SimpleNamespace(cuda=cuda, empty=empty, uint8="uint8")


def test_a_link_is_read_while_a_copy_runs() -> None:
    cuda = Cuda(pci_domain_id=0, pci_bus_id=0x1B, pci_device_id=0)
    found = look.loaded_link(torch_with(cuda), 0)
    assert found["address"] == "0000:1b:00.0"
    assert found["copy_gbytes_per_s"] == pytest.approx(67.1, abs=0.1)  # 8 x 64 MiB in 8 ms
    assert cuda.copies == 9 and cuda.freed
    assert look.COPIES * look.COPY_BYTES <= 512 << 20


def test_torch_that_tells_no_pci_address() -> None:
    with pytest.raises(Exception):  # noqa: B017 - whatever it is, "guarded" turns it into a missing fact
        look.pci_address(torch_with(Cuda(uuid="no such")), 0)
    assert look.guarded(lambda: look.pci_address(torch_with(Cuda()), 0))["$missing"] == "failed"


def test_numbers_of_sysfs(tmp_path: Any) -> None:
    (tmp_path / "speed").write_text("16.0 GT/s PCIe\n")
    (tmp_path / "width").write_text("16\n")
    (tmp_path / "unknown").write_text("Unknown\n")
    assert look.number(str(tmp_path / "speed"), float) == 16.0
    assert look.number(str(tmp_path / "width"), int) == 16
    assert look.number(str(tmp_path / "unknown"), float)["$missing"] == "failed"
    assert look.number(str(tmp_path / "nothing"), int)["$missing"] == "failed"


@pytest.mark.parametrize(("body", "lacking"), [("", "__version__"), ("__version__ = '0'\n", "Tensor")])
def test_another_package_of_that_name_is_told_by_its_place(body: str, lacking: str, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text(body)
    done = subprocess.run(
        [sys.executable, "-S", torch_child.__file__],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    words = json.loads(done.stdout.splitlines()[-1])["import_error"]
    assert str(tmp_path) in words and words.endswith(f"(it has no {lacking})")
