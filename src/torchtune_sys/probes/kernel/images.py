"""Leave out logged disk errors that accuse no disk of this host: those of mapped devices backed by files or memory alone, or removed since."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from torchtune_sys.formats.kernel_messages import IMAGES
from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.values import Missing

if TYPE_CHECKING:
    from torchtune_sys.host.base import Host
    from torchtune_sys.model.facts.kernel import KernelEvent

ERRORS_OF_DISKS = ("disk-io", "disk-medium", "fs-error", "fs-read-only")
_MAPPED = pattern(r"(?:dm-|md|bcache)\d")
_BLOCK = "/sys/class/block"
_DEEP = 16


def of_disks(host: Host, events: Iterable[KernelEvent]) -> Iterator[KernelEvent]:
    """Yield the events without those of images. Nobody can take a mapped device away while it is mounted or a part of another (EBUSY): one that is gone
    is used by nobody. A disk under it that broke has lines of its own."""
    known: dict[str, bool] = {}
    for event in events:
        if event.kind in ERRORS_OF_DISKS and _MAPPED.match(event.subject):
            if event.subject not in known:
                known[event.subject] = _is_gone(host, event.subject) or _on_images(host, event.subject, 0)
            if known[event.subject]:
                continue
        yield event


def _is_gone(host: Host, name: str) -> bool:
    """Where the kernel shows its block devices, and this is none of them."""
    names = host.names(_BLOCK)
    return not isinstance(names, Missing) and bool(names) and name not in names


def _on_images(host: Host, name: str, depth: int) -> bool:
    """Whether all that is below a device are images, as far down as the kernel tells; False where it does not."""
    if re.match(IMAGES, name):
        return True
    below = host.names(f"{_BLOCK}/{name}/slaves")
    if isinstance(below, Missing) or not below or depth > _DEEP:
        return False
    return all(_on_images(host, posixpath.basename(other), depth + 1) for other in below)
