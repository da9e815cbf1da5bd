"""The size limits of user data, by cloud."""

from __future__ import annotations

import msgspec

from torchtune_sys.knowledge.tables import rows


class UserDataLimit(msgspec.Struct, frozen=True, kw_only=True):
    cloud: str
    size_bytes: int
    """Before base64."""
    is_text: bool
    """Compressed data cannot be given."""
    source: str


def limits() -> tuple[UserDataLimit, ...]:
    """Return the limits, the smallest first.

    >>> [(item.cloud, item.size_bytes) for item in limits()][0]
    ('Amazon EC2', 16384)
    """
    found = (
        UserDataLimit(cloud=row["cloud"], size_bytes=int(row["bytes"]), is_text=row["text"] == "yes", source=row["source"])
        for row in rows("cloud_limits")
    )
    return tuple(sorted(found, key=lambda item: item.size_bytes))
