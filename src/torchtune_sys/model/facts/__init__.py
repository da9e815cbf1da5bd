"""Facts by family: what a probe may learn of a host. Frozen values, units in the names."""

from __future__ import annotations

from typing import TypeAlias, TypeVar

from torchtune_sys.model.values import Missing

_T = TypeVar("_T")

Fact: TypeAlias = _T | Missing
