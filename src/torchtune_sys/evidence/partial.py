"""A family of facts of which a report tells a few."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from torchtune_sys.model.values import Missing, Why

T = TypeVar("T", bound=msgspec.Struct)
SOURCE = "report"


def missing(detail: str = "not in the report") -> Missing:
    return Missing(Why.NOT_RECORDED, SOURCE, detail)


def partly(kind: type[T], **facts: object) -> T:
    """A family of which the report tells a few facts: the others NOT_RECORDED, texts that are no facts empty."""
    for field in msgspec.structs.fields(kind):
        if field.required:
            facts.setdefault(field.name, "" if field.type is str else missing())
    return kind(**facts)
