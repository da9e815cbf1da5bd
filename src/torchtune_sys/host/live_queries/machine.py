"""Answers from records that are binary or large: the firmware's table, the package manager's list."""

from __future__ import annotations

import os
from typing import Any

from torchtune_sys.host.base import missing_from
from torchtune_sys.host.live import read_all
from torchtune_sys.host.secrets.filter import brief
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_LIMIT = 64 << 20


def smbios(argument: str, timeout_s: float) -> Fact[Any]:
    from torchtune_sys.formats.smbios import memory_devices

    data = _bytes("/sys/firmware/dmi/tables/DMI")
    return data if isinstance(data, Missing) else {"memory_devices": memory_devices(data)}


def packages(argument: str, timeout_s: float) -> Fact[Any]:
    from torchtune_sys.formats import package_records as records

    data = _bytes("/var/lib/dpkg/status")
    if not isinstance(data, Missing):
        return records.parse_status(data)
    if data.why is not Why.ABSENT:
        return data
    if os.path.isdir("/var/lib/pacman/local"):
        try:
            return records.parse_pacman(os.listdir("/var/lib/pacman/local"))
        except OSError as error:
            return missing_from(error, "/var/lib/pacman/local")
    if not os.path.isdir("/usr/lib/sysimage/rpm") and not os.path.isdir("/var/lib/rpm"):
        return data
    from torchtune_sys.host.children import process

    found = process.run(records.RPM_QUERY, timeout_s=min(timeout_s, 3.0))
    if isinstance(found, Missing):
        return found
    if not found.stdout.strip():  # it says one line for each name, unless it could not open its database
        return Missing(Why.FAILED, "rpm -q", brief(found.stderr, 100))
    return records.parse_rpm(found.stdout)


def _bytes(path: str) -> Fact[bytes]:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        try:
            data = read_all(handle, _LIMIT)
        finally:
            os.close(handle)
    except OSError as error:
        return missing_from(error, path)
    return data if len(data) <= _LIMIT else Missing(Why.UNPARSED, path, f"larger than {_LIMIT >> 20} MiB")
