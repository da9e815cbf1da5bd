"""A signed store for the ranks of a collective. torch's own store does not authenticate its clients.

The processes that speak for the nodes derive a key from the job's secret. A rank signs each value with that key, and stores it under a name that is a hash with the key. A
stranger who reaches the port can still overwrite or delete values; the rank that wrote them detects it. Without a job secret the key protects nothing.
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


class Seal:
    """Hides names and signs values with a key, and remembers what this rank wrote."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.kept: Dict[str, bytes] = {}
        """Hidden name → signed value."""

    def hide(self, name: str) -> str:
        return hmac.new(self._key, b"name " + name.encode(), hashlib.sha256).hexdigest()[:32]

    def sign(self, name: str, value: bytes) -> bytes:
        """Return the signed value, and remember it."""
        signed = self.kept[self.hide(name)] = self._mark(name, value) + value
        return signed

    def open(self, name: str, signed: bytes) -> bytes:
        """Return the value. Raises Tampered where the signature is not of this key and name."""
        value = signed[MARK_BYTES:]
        if not hmac.compare_digest(signed[:MARK_BYTES], self._mark(name, value)):
            raise Tampered(TAMPERED)
        return value

    def _mark(self, name: str, value: bytes) -> bytes:
        return hmac.new(self._key, b"value " + name.encode() + b"\0" + value, hashlib.sha256).digest()[:MARK_BYTES]


class _Signed:
    """The methods that gloo and torch.distributed call of a store, over an inner store. torch's Store is a base beside it (``guarded``)."""

    _inner: Any
    _seal: Seal

    def set(self, name: str, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._inner.set(self._seal.hide(name), self._seal.sign(name, data))

    def get(self, name: str) -> bytes:
        return self._seal.open(name, self._inner.get(self._seal.hide(name)))

    def add(self, name: str, amount: int) -> int:
        return int(self._inner.add(self._seal.hide(name), amount))

    def check(self, names: Any) -> bool:
        return bool(self._inner.check([self._seal.hide(name) for name in names]))

    def wait(self, names: Any, *timeout: Any) -> None:
        self._inner.wait([self._seal.hide(name) for name in names], *timeout)

    def delete_key(self, name: str) -> bool:
        self._seal.kept.pop(self._seal.hide(name), None)
        return bool(self._inner.delete_key(self._seal.hide(name)))

    def num_keys(self) -> int:
        return int(self._inner.num_keys())

    def set_timeout(self, timeout: Any) -> None:
        self._inner.set_timeout(timeout)

    def has_extended_api(self) -> bool:
        return False

    def tampered(self) -> bool:
        """Return whether another process changed or removed what this rank wrote."""
        return changed(self._inner, self._seal.kept)


def guarded(inner: Any, key: bytes) -> Any:
    """Return a torch store over ``inner`` that signs what it writes and refuses to read what is not signed."""
    import torch.distributed as dist

    store = type("Guarded", (_Signed, dist.Store), {})()
    store._inner, store._seal = inner, Seal(key)
    return store


def changed(inner: Any, kept: Dict[str, bytes]) -> bool:
    """Return whether a value that this rank wrote was changed, or removed, where this torch's stores can tell (2.1 has no ``check``)."""
    inner.set_timeout(datetime.timedelta(seconds=LOOK_BACK_S))
    has_check = hasattr(inner, "check")
    try:
        return any((has_check and not inner.check([name])) or inner.get(name) != value for name, value in kept.items())
    except Exception:  # the store is out of reach
        return False


def who_else(store: Any, other_users: Callable[[], Any]) -> str:
    """Return a stranger who may have made a collective fail; "" if none is seen. ``other_users`` returns users of this host that are connected to this rank."""
    if store.tampered():
        return TAMPERED
    try:
        found = other_users()
    except OSError:  # no table of connections: a sandbox
        return ""
    return "connected with a process that is none of this user's: %s" % "; ".join(found[:4]) if found else ""
