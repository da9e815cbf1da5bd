"""A family of facts of which a report tells a few."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from torchtune_sys.model.values import Missing, Why

T = TypeVar("T", bound=msgspec.Struct)
SOURCE = "report"


def missing(detail: str = "not in the report") -> Missing:
    return Missing(Why.NOT_RECORDED, SOURCE, detail)


def partly(kind: type[T], **facts: object) -> T:
    """Return a family of which the report tells a few facts: the others NOT_RECORDED, texts that are not facts empty."""
    return kind(**{**_untold(kind), **facts})


@lru_cache(None)
def _untold(kind: type[msgspec.Struct]) -> dict[str, str | Missing]:
    """Return what the family's facts are where nothing is told; msgspec evaluates each annotation anew when it is asked for fields."""
    return {field.name: "" if field.type is str else missing() for field in msgspec.structs.fields(kind) if field.required}


_NOT_READ = "not read"


def as_report(facts: Any) -> Any:
    """Return the facts, of which those that nobody read are not in the report: their families' defaults name what is asked on a host.

    >>> from torchtune_sys.model.facts.gpu import Gpu
    >>> as_report((Gpu(index=0, name="NVIDIA L4"),))[0].pci_address
    Missing(why=<Why.NOT_RECORDED: 'not-recorded'>, source='report', detail='not in the report', remedy='')
    """
    if isinstance(facts, Missing):
        return missing() if facts.why is Why.NOT_RECORDED and facts.detail == _NOT_READ else facts
    if isinstance(facts, msgspec.Struct):
        old = {name: getattr(facts, name) for name in facts.__struct_fields__}
        new = {name: as_report(value) for name, value in old.items() if isinstance(value, Missing | msgspec.Struct | tuple)}
        changed = {name: value for name, value in new.items() if value is not old[name]}
        return msgspec.structs.replace(facts, **changed) if changed else facts
    if isinstance(facts, tuple) and facts and isinstance(facts[0], msgspec.Struct):
        found = tuple(map(as_report, facts))
        return found if any(one is not other for one, other in zip(found, facts, strict=True)) else facts
    return facts
