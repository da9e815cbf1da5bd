"""What is odd and breaks nothing: system calls that filters refuse and training does not need, and settings that only look wrong."""

from __future__ import annotations

from collections.abc import Mapping

from smoke.faults.means import SOCKET, refused, unshared, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row

_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_CALLS: Mapping[str, tuple[int, int]] = {
    "memfd-create": (319, _EPERM),
    "pidfd-open": (434, _ENOSYS),
    "io-uring-setup": (425, _EPERM),
    "process-vm-readv": (310, _EPERM),
    "mbind": (237, _EPERM),
    "sched-setaffinity": (203, _EPERM),
    "userfaultfd": (323, _EPERM),
    "prlimit": (302, _EPERM),
}
"""On x86-64."""
_WAYS: Mapping[str, tuple[str, str, Inject]] = {
    **{f"{name}-refused": (f"A filter refuses {name.replace('-', '_')}", "seccomp", refused(*call)) for name, call in _CALLS.items()},
    "ipv6-sockets-refused": ("A service's RestrictAddressFamilies leaves out AF_INET6", "seccomp", refused(SOCKET, _EAFNOSUPPORT, first=10)),
    "sys-hidden": ("/sys is empty", "namespace", unshared("--mount", "mount -t tmpfs -o ro tmpfs /sys")),
    "optimised-twice": ("PYTHONOPTIMIZE=2: assertions and docstrings are left out", "environment", variables(PYTHONOPTIMIZE="2")),
}  # fmt: skip

ROWS: tuple[Fault, ...] = tuple(
    row(name, what, "", "", inject=inject, means=means, stages="") for name, (what, means, inject) in _WAYS.items()
)
