"""torch's store between the ranks of a collective, in which nobody but they can say anything: torch asks no client who it is.

What a rank writes is signed with a key that the processes speaking for the nodes derive from the job's secret, under a name that the key decides. A stranger who reaches the
port can still write over it or delete it: a rank sees that it was done. Where the job has no secret the key is none either.
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
from typing import Any, Callable, Dict

MARK_BYTES = 16
LOOK_BACK_S = 1.0
TAMPERED = "another process writes to the store of the collectives"


class Tampered(Exception):
    """Somebody who does not know the key wrote to the store."""


def guarded(inner: Any, key: bytes) -> Any:  # noqa: C901 -- a class that can be made only where torch is
    """Return a store that signs what goes into ``inner``, and refuses what is not signed. Its ``tampered()`` says whether what it wrote is still there."""
    import torch.distributed as dist

    kept: Dict[str, bytes] = {}

    def named(name: str) -> str:
        return hmac.new(key, b"name " + name.encode(), hashlib.sha256).hexdigest()[:32]

    def mark(name: str, value: bytes) -> bytes:
        return hmac.new(key, b"value " + name.encode() + b"\0" + value, hashlib.sha256).digest()[:MARK_BYTES]

    def opened(name: str, found: bytes) -> bytes:
        value = found[MARK_BYTES:]
        if not hmac.compare_digest(found[:MARK_BYTES], mark(name, value)):
            raise Tampered(TAMPERED)
        return value

    class Guarded(dist.Store):
        """What gloo and torch.distributed call of a store."""

        def set(self, name: str, value: Any) -> None:
            told = value.encode() if isinstance(value, str) else bytes(value)
            kept[named(name)] = mark(name, told) + told
            inner.set(named(name), kept[named(name)])

        def get(self, name: str) -> bytes:
            return opened(name, inner.get(named(name)))

        def add(self, name: str, amount: int) -> int:
            return int(inner.add(named(name), amount))

        def check(self, names: Any) -> bool:
            return bool(inner.check([named(name) for name in names]))

        def wait(self, names: Any, *timeout: Any) -> None:
            inner.wait([named(name) for name in names], *timeout)

        def delete_key(self, name: str) -> bool:
            kept.pop(named(name), None)
            return bool(inner.delete_key(named(name)))

        def num_keys(self) -> int:
            return int(inner.num_keys())

        def set_timeout(self, timeout: Any) -> None:
            inner.set_timeout(timeout)

        def has_extended_api(self) -> bool:
            return False

    found = Guarded()
    found.tampered = lambda: changed(inner, kept)
    return found


def changed(inner: Any, kept: Dict[str, bytes]) -> bool:
    """Whether something that this rank wrote is other than it was; or gone, where this torch's stores can be asked that (2.1 has no ``check``)."""
    inner.set_timeout(datetime.timedelta(seconds=LOOK_BACK_S))
    has_check = hasattr(inner, "check")
    try:
        return any((has_check and not inner.check([name])) or inner.get(name) != value for name, value in kept.items())
    except Exception:  # the store is out of reach
        return False


def who_else(store: Any, other_users: Callable[[], Any]) -> str:
    """Return who may be the reason why a collective fails; "" where nobody is seen. ``other_users``: who of this host is connected to us."""
    if store.tampered():
        return TAMPERED
    try:
        found = other_users()
    except OSError:  # no table of connections: a sandbox
        return ""
    return "connected with a process that is none of this user's: %s" % "; ".join(found[:4]) if found else ""
