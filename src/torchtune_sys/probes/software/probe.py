"""Read installed packages, their holds and upgrades, kernels for the next boot, and the container runtime."""

from __future__ import annotations

import msgspec

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.session import Workload
from torchtune_sys.model.facts.software import CACHE_VARIABLES, CompileCache, SoftwareFacts
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, fact, need
from torchtune_sys.probes.software import compile_caches

_DRIVER = "/proc/driver/nvidia/version"


def probe(host: Host, intent: Workload) -> SoftwareFacts:
    """Read what is installed. One look where no NVIDIA driver runs: nothing of this family is judged there."""
    runs = host.exists(_DRIVER)
    port = _port(host)
    if runs is True:
        from torchtune_sys.probes.software import gpu as software_gpu

        return msgspec.structs.replace(software_gpu.read(host, port), first_open_port=_first_open_port(host, port))
    nothing = runs if isinstance(runs, Missing) else Missing(Why.ABSENT, _DRIVER, "no NVIDIA driver runs here")
    return SoftwareFacts(
        manager=nothing,
        packages=nothing,
        automatic_upgrades=nothing,
        runfile_installed=nothing,
        reboot_required=nothing,
        next_kernel=nothing,
        docker=nothing,
        cgroup_driver=nothing,
        device_links=nothing,
        runtime_mode=nothing,
        cdi_drivers=nothing,
        build_tools=nothing,
        compile_caches=_named_caches(host, nothing),
        mps=nothing,
        port_listeners=port,
        first_open_port=_first_open_port(host, port),
    )


def _first_open_port(host: Host, port: Fact[tuple[int, ...]]) -> Fact[int]:
    if isinstance(port, Missing) and port.why is Why.ABSENT:
        return port
    text = host.word("/proc/sys/net/ipv4/ip_unprivileged_port_start")
    number = text if isinstance(text, Missing) else natural(text)
    return Missing(Why.UNPARSED, "ip_unprivileged_port_start", str(text)[:60]) if number is None else number


def _named_caches(host: Host, nothing: Missing) -> Fact[tuple[CompileCache, ...]]:
    """Where somebody said to keep what torch.compile builds, which it does for CPUs and other GPUs as well; else its usual place, where that stands."""
    env, found = host.env(), compile_caches.caches(host)
    wanted = set() if isinstance(env, Missing) else {name for name in CACHE_VARIABLES if env.get(name)}
    if isinstance(found, Missing):
        return found if wanted else nothing
    wanted = wanted or {cache.variable for cache in found if cache.purpose == "torch.compile" and host.exists(cache.path) is True}
    return tuple(cache for cache in found if cache.variable in wanted) if wanted else nothing


@fact
def _port(host: Host) -> Fact[tuple[int, ...]]:
    env = need(host.env())
    port = env.get("MASTER_PORT", "")
    if not port:
        return Missing(Why.ABSENT, "MASTER_PORT", "not set")
    from torchtune_sys.probes.software import session as software_session

    return software_session.listeners(host, port)
