"""A job's environment: what to set or unset, and why."""

from __future__ import annotations

import msgspec


class JobVariable(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    value: str | None
    """None: to be unset."""
    reason: str
    source: str
    """The rule that asks for it, or where the advice is from."""
    sure: bool = True
    """False where a person must choose: the value is an example, or the effect depends on the job."""
