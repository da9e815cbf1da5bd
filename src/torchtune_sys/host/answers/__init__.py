"""Answers of the live machine to the questions of ``host/questions.py``. Each takes (argument, timeout_s)."""

from __future__ import annotations

import importlib
from typing import Any

from torchtune_sys.host import questions
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

_WHERE = {
    questions.AFFINITY: "basic:affinity",
    questions.RLIMITS: "basic:rlimits",
    questions.UID: "basic:uid",
    questions.UNAME: "basic:uname",
    questions.CWD: "basic:cwd",
    questions.TODAY: "basic:today",
    questions.DISTRIBUTION: "distribution:distribution",
    questions.GLIBC: "basic:glibc",
    questions.ACCESS: "basic:access",
    questions.INTERFACES: "network:interfaces",
    questions.HOSTNAME_ADDRESSES: "network:hostname_addresses",
    questions.NVML: "nvml:nvml",
    questions.INTERPRETER: "python:interpreter",
    questions.KERNEL_LOG: "kernel_log:kernel_log",
    questions.LIVE_TORCH: "python:live_torch",
    questions.PCI_CONFIG: "pci:config",
    questions.PCI_ERRORS: "pci:errors",
    questions.RDMA_COUNTERS: "rdma:counters",
    questions.SMBIOS: "machine:smbios",
    questions.PACKAGES: "machine:packages",
    questions.SERVICES: "load:services",
    questions.PORT_LISTENERS: "sockets:port_listeners",
    questions.BOUND_SOCKET: "sockets:bound_socket",
    questions.DYNAMIC: "loader:dynamic",
    questions.LOADER_CACHE: "loader:cache",
    questions.MEMORY_POLICY: "basic:memory_policy",
}


def answer(question: str, timeout_s: float) -> Fact[Any]:
    """Answer ``question`` or ``question:argument``; the module behind it is imported only now."""
    name, _, argument = question.partition(":")
    if name not in _WHERE:
        return Missing(Why.NOT_SUPPORTED, question, "no such question")
    module, _, function = _WHERE[name].partition(":")
    return getattr(importlib.import_module(f"{__name__}.{module}"), function)(argument, timeout_s)
