"""Find installed replacements for malloc."""

from __future__ import annotations

from torchtune_sys.host.base import Host

_DIRS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/local/lib")
_NAMES = ("libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libtcmalloc.so.4")


def probe(host: Host) -> tuple[str, ...]:
    """Return the paths of allocators that are installed, jemalloc first."""
    return tuple(f"{place}/{name}" for name in _NAMES for place in _DIRS if host.exists(f"{place}/{name}") is True)
