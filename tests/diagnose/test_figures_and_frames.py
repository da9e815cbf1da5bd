"""What no line of a text says, and its figures or the frames of a traceback tell."""

from __future__ import annotations

import io

import pytest

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt


def named(text: str) -> list[str]:
    return [each.cause for each in diagnose([InputText(name="x", excerpt=excerpt(io.BytesIO(text.encode())))]).causes]


def traceback(*frames: tuple[str, str], error: str) -> str:
    shown = "".join(f'  File "{path}", line 3, in <module>\n    {code}\n' for path, code in frames)
    return f"Traceback (most recent call last):\n{shown}{error}\n"


LIBRARY = "/opt/conda/lib/python3.10"
TORCH = (f"{LIBRARY}/site-packages/torch/__init__.py", "from . import _utils")


@pytest.mark.parametrize(
    "prefix",
    ["", "[rank3]: "],
)
def test_a_file_that_the_library_imports_by_mistake_is_named(prefix: str) -> None:
    text = traceback(
        ("train.py", "import torch"),
        TORCH,
        (f"{LIBRARY}/inspect.py", "import tokenize"),
        ("/home/ada/train/tokenize.py", "import torch.nn as nn"),
        error="AttributeError: module 'torch' has no attribute 'Tensor'",
    )
    assert named("".join(prefix + line + "\n" for line in text.splitlines())) == ["stdlib-hidden"]


def test_a_script_with_a_name_of_the_library_is_named_where_what_it_imports_fails_within() -> None:
    text = traceback(
        ("select.py", "from torch.autograd import Variable"),
        TORCH,
        error="AttributeError: 'module' object has no attribute 'cuda'",
    )
    assert named(text) == ["stdlib-hidden"]


@pytest.mark.parametrize(
    "frames",
    [
        [("/home/me/random_walk.py", "torch.foo()")],
        [("/home/me/copy.py", "torch.foo()")],  # its own mistake: nothing imported it
        [("/home/me/test.py", "import torch"), TORCH],
    ],
)
def test_a_script_that_uses_a_name_that_torch_lacks_hides_nothing(frames: list[tuple[str, str]]) -> None:
    assert named(traceback(*frames, error="AttributeError: module 'torch' has no attribute 'foo'")) == []


@pytest.mark.parametrize(
    ("path", "error"),
    [
        ("torch/__init__.py", "ImportError: No module named _C"),
        ("/home/me/pytorch/torch/__init__.py", "ModuleNotFoundError: No module named 'torch._C'"),
        ("/home/me/torch.py", "AttributeError: module 'torch' has no attribute 'nn'"),
    ],
)
def test_a_torch_that_is_not_the_installed_one_is_named(path: str, error: str) -> None:
    assert named(traceback(("train.py", "import torch"), (path, "from torch._C import *"), error=error))[:1] == ["torch-shadowed"]


def bandwidths(direct: float) -> str:
    def table(state: str, between: float) -> str:
        rows = "\n".join(
            "  ".join([f"     {at}", *(f"{670.5 if at == to else between:.2f}" for to in range(3))]) for at in range(3)
        )
        return f"Unidirectional P2P={state} Bandwidth Matrix (GB/s)\n   D\\D     0      1      2\n{rows}\n"

    return table("Disabled", 13.1) + table("Enabled", direct)


def test_copies_that_are_slower_directly_than_through_the_host_speak_of_acs() -> None:
    assert named(bandwidths(2.1))[0] == "p2p-blocked-by-iommu-acs"
    assert named(bandwidths(26.0)) == []


def test_an_error_that_was_copied_out_of_an_address_is_read() -> None:
    assert named("/lib/libstdc++.so.6:%20version%20`GLIBCXX_3.4.30'%20not%20found") == ["libstdcxx-too-old"]


def test_what_a_program_may_do_without_accuses_no_host() -> None:
    loader = "W tensorflow/compiler/xla/stream_executor/platform/default/dso_loader.cc:64] Could not load dynamic library"
    assert named(f"{loader} 'libcudart.so.11.0'; dlerror: libcudart.so.11.0: cannot open shared object file") == []
    assert (
        named(
            "ERROR: Ignored the following versions that require a different python version: torch 0.52.0 Requires-Python >=3.6,<3.9"
        )
        == []
    )


def test_a_rule_says_no_more_of_a_line_whose_cause_is_known() -> None:
    assert named("blk_update_request: I/O error, dev nvme0n1, sector 1234 op 0x0:(READ)") == ["storage-io-error"]
