"""NCCL's network plug-ins (libnccl-net.so), looked for only where an RDMA device cannot be used without one.

NCCL loads ``libnccl-net.so``, or what NCCL_NET_PLUGIN names, with dlopen (NVIDIA/nccl src/plugin/plugin_open.cc): the loader's path decides.
"""

from __future__ import annotations

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.network import RdmaDevice
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.probes.driver.files import search_path

_USUAL = (
    "/opt/amazon/ofi-nccl/lib",
    "/opt/amazon/ofi-nccl/lib/x86_64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib/aarch64-linux-gnu",
    "/opt/amazon/ofi-nccl/lib64",
    "/opt/amazon/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/lib",
    "/opt/aws-ofi-nccl/install/lib",
    "/usr/local/cuda/efa/lib",
)
"""Where Amazon's installer, its machine images and its instructions for building put the plug-in over the years."""

Found = tuple[Fact[tuple[str, ...]], Fact[tuple[str, ...]]]


def look(host: Host, devices: Fact[tuple[RdmaDevice, ...]]) -> Found:
    """Look for the plug-in on the loader's path, and in the usual places beside it."""
    if isinstance(devices, Missing):
        return devices, devices
    if not any(needs_plugin(device) for device in devices):
        nothing = Missing(Why.ABSENT, "libnccl-net.so", "no device here needs a plug-in of NCCL")
        return nothing, nothing
    path = search_path(host)
    return _files(host, path), _files(host, [place for place in _USUAL if place not in path])


def needs_plugin(device: RdmaDevice) -> bool:
    """Return whether a device is EFA: its ports are neither InfiniBand nor Ethernet, and NCCL itself opens no others."""
    layers = [port.link_layer for port in device.ports]
    return device.driver == "efa" or bool(layers and all(layer == "Unspecified" for layer in layers))


def _files(host: Host, places: list[str]) -> Fact[tuple[str, ...]]:
    found: list[str] = []
    unseen: Missing | None = None
    for place in places:
        names = host.names(place)
        if isinstance(names, Missing):
            if unseen is None and names.why is not Why.ABSENT:
                unseen = names
            continue
        found += [f"{place}/{name}" for name in names if name.startswith("libnccl-net") and ".so" in name]
    return tuple(found) if found or unseen is None else unseen
