"""Exchange notes between ranks over torch's store, always with a deadline."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from typing import Any

from torchtune_sys.host.secrets.filter import scrubbed_answer
from torchtune_sys.model.codec import loads_of_python

_POLL_S = 0.05
_NOTE_AT_MOST = 1 << 20


class Notes:
    """``store``: of torch.distributed; what stands before each key keeps one check's notes from another's."""

    def __init__(self, store: Any, prefix: str) -> None:
        self._store, self._prefix = store, prefix

    def put(self, key: str, value: Any) -> None:
        """Tell all ranks, without secrets: an exception's words may hold any."""
        text = json.dumps(scrubbed_answer(value))
        self._store.set(f"{self._prefix}{key}", text if len(text) <= _NOTE_AT_MOST else "null")

    def first(self, key: str) -> bool:
        """Return whether nobody asked for this before."""
        return self.counted(key, 1) == 1

    def counted(self, key: str, more: int = 0) -> int:
        """Return how often this was counted, with ``more``."""
        return int(self._store.add(f"{self._prefix}{key}", more))

    def get(self, key: str, until_s: float) -> object:
        """Return what stands there; None where nothing does in time."""
        return next(iter(self.gather((key,), until_s).values()), None)

    def gather(self, keys: Iterable[str], until_s: float, came: Callable[[str], None] = lambda _key: None) -> dict[str, Any]:
        """Return all of these as they come, until the time is up. JSON alone is read: nothing that another rank said is unpickled."""
        left, found = list(dict.fromkeys(keys)), dict[str, Any]()
        while left:
            here = left if self._are_there(left) else [key for key in left if self._are_there([key])]
            for key in here:
                came(key)
                try:
                    found[key] = loads_of_python(bytes(self._store.get(f"{self._prefix}{key}")))
                except ValueError:
                    found[key] = None
            left = [key for key in left if key not in found]
            if not left or time.monotonic() > until_s:
                break
            time.sleep(_POLL_S)
        return found

    def _are_there(self, keys: list[str]) -> bool:
        return bool(self._store.check([f"{self._prefix}{key}" for key in keys]))
