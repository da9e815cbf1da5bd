"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import re

import pytest

import torchtune_sys

MODULES = sorted(
    found.name
    for found in pkgutil.walk_packages(torchtune_sys.__path__, "torchtune_sys.")
    if not found.name.endswith(("__main__", "_child"))
    and not re.search(r"\.(smoke\.worker|torchrun)\.", found.name)  # these need torch
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str) -> None:
    failed, _ = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0
