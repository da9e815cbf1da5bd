"""The GPUs, through the NVML child; never started on a host that shows no sign of an NVIDIA driver."""

from __future__ import annotations

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model import codec
from torchtune_sys.model.facts.gpu import GpuFacts, without
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.values import Missing, Why, known
from torchtune_sys.probes.pci.details import sleeps

_BOUND = "/sys/bus/pci/drivers/nvidia"
_SIGNS = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg", *queries.NVML_LIBRARIES)


def probe(host: Host, intent: Workload) -> GpuFacts:
    sign = find_sign(host)
    if isinstance(sign, Missing):
        return without(sign)
    if not intent.live and (sleeper := find_sleeper(host)):
        detail = f"{sleeper} is suspended, and asking the driver would wake it"
        return without(Missing(Why.NOT_SUPPORTED, "NVML", detail, "check --live, or while a program uses the GPU"))
    found = codec.as_fact(host.ask(queries.NVML, queries.NVML_TIMEOUT_S), GpuFacts, "NVML")
    return without(found) if isinstance(found, Missing) else found


def find_sleeper(host: Host) -> str:
    """Return the PCI address of an NVIDIA GPU that runtime power management has suspended (laptops, and desktops with a second GPU); else ``""``."""
    names = host.names(_BOUND)
    addresses = () if isinstance(names, Missing) else [name for name in names if ":" in name and name[0].isalnum()]
    return next((name for name in addresses if sleeps(host, f"{_BOUND}/{name}")), "")


def find_sign(host: Host) -> str | Missing:
    """Return the first thing that shows an NVIDIA driver; Missing(ABSENT) if all places were looked at and are empty."""
    variables = known(host.env(), {})
    places = [
        f"{directory.rstrip('/')}/libnvidia-ml.so.1"
        for directory in variables.get("LD_LIBRARY_PATH", "").split(":")
        if directory[:1] == "/"
    ]
    tools = [f"{directory.rstrip('/')}/nvidia-smi" for directory in variables.get("PATH", "").split(":") if directory[:1] == "/"]
    unseen: Missing | None = None
    for place in (*_SIGNS, *places, *tools):
        there = host.exists(place)
        if there is True:
            return place
        # What this session may not search it can neither start nor load: "su USER" keeps root's PATH.
        barred = place not in _SIGNS and isinstance(there, Missing) and there.why is Why.DENIED
        if isinstance(there, Missing) and unseen is None and not barred:
            unseen = there
    return Missing(Why.ABSENT, "NVIDIA driver", "no NVIDIA driver on this host") if unseen is None else unseen
