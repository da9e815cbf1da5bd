"""Answers of the live machine to the questions of ``host/queries.py``. Each takes (argument, timeout_s)."""

from __future__ import annotations

import importlib
from typing import Any

from torchtune_sys.host import queries
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_WHERE = {
    queries.AFFINITY: "basic:affinity",
    queries.RLIMITS: "basic:rlimits",
    queries.UID: "basic:uid",
    queries.UNAME: "basic:uname",
    queries.CWD: "basic:cwd",
    queries.TODAY: "basic:today",
    queries.DISTRIBUTION: "distribution:distribution",
    queries.GLIBC: "basic:glibc",
    queries.ACCESS: "basic:access",
    queries.INTERFACES: "network:interfaces",
    queries.HOSTNAME_ADDRESSES: "network:hostname_addresses",
    queries.LOCALHOST_ADDRESSES: "network:localhost_addresses",
    queries.WAY_TO: "network:way_to",
    queries.NVML: "nvml:nvml",
    queries.INTERPRETER: "python:interpreter",
    queries.KERNEL_LOG: "kernel_log:kernel_log",
    queries.LIVE_TORCH: "python:live_torch",
    queries.PCI_CONFIG: "pci:config",
    queries.PCI_ERRORS: "pci:errors",
    queries.RDMA_COUNTERS: "rdma:counters",
    queries.SMBIOS: "machine:smbios",
    queries.PACKAGES: "machine:packages",
    queries.SERVICES: "load:services",
    queries.PORT_LISTENERS: "sockets:port_listeners",
    queries.BOUND_SOCKET: "sockets:bound_socket",
    queries.USER_TASKS: "load:user_tasks",
    queries.DYNAMIC: "loader:dynamic",
    queries.CUT_LIBRARIES: "loader:cut_libraries",
    queries.LOST_PARTS: "python:lost_parts",
    queries.MODULE_FILES: "python:module_files",
    queries.LOADER_CACHE: "loader:cache",
    queries.MEMORY_POLICY: "basic:memory_policy",
    queries.REFUSALS: "basic:refusals",
    queries.FIRST_FILES: "basic:first_files",
}


def answer(question: str, timeout_s: float) -> Fact[Any]:
    """Answer ``question`` or ``question:argument``; the module behind it is imported only now."""
    name, _, argument = question.partition(":")
    if name not in _WHERE:
        return Missing(Why.NOT_SUPPORTED, question, "no such question")
    module, _, function = _WHERE[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), function)(argument, timeout_s)
