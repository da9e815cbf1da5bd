"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import re

import pytest

import torchtune_sys

MODULES = [
    found.name
    for found in pkgutil.walk_packages(torchtune_sys.__path__, "torchtune_sys.")
    if not found.name.endswith(("__main__", "_child"))
    and not re.search(r"\.(smoke\.worker|torchrun)\.", found.name)  # these need torch
]


@pytest.mark.parametrize("package", sorted({name.rpartition(".")[0] for name in MODULES}))
def test_examples(package: str) -> None:
    for name in MODULES:
        if name.rpartition(".")[0] == package:
            module = importlib.import_module(name)
            if ">>>" in inspect.getsource(module):  # two in three have no example: looking for some in each object takes long
                failed, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
                assert failed == 0, name
