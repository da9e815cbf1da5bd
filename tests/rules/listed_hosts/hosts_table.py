"""Table of the builders of the hosts in hosts.csv, which modules named by their first host fill, and the hosts that most start from."""

from __future__ import annotations

from collections.abc import Callable

from machines import Recording, environment, ordinary, over
from platforms_troubled import logged

Build = Callable[[], Recording]
HOSTS: dict[int, tuple[Build, Build]] = {}
"""Number in hosts.csv: the host, and the same without what was changed."""


def dgx() -> Recording:
    return ordinary("dgx-h100")


def desktop() -> Recording:
    return ordinary("desktop-4090")


def mi300x() -> Recording:
    return ordinary("mi300x")


def two_dgx() -> Recording:
    return over(dgx(), intent={"nodes": 2})


def made(number: int, like: Build = dgx) -> Callable[[Build], Build]:
    """Enter a builder under its number."""

    def enter(build: Build) -> Build:
        HOSTS[number] = (build, like)
        return build

    return enter


def with_variables(number: int, like: Build = dgx, **variables: str) -> None:
    """Enter a host that differs by its environment only."""
    HOSTS[number] = (lambda: environment(like(), **variables), like)


def with_log(number: int, like: Build, *lines: str) -> None:
    """Enter a host that differs by its kernel's log only."""
    HOSTS[number] = (lambda: logged(like(), *lines), like)
