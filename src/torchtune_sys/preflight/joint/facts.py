"""What each node tells the others of itself: a few facts out of the snapshot."""

from __future__ import annotations

from collections.abc import Mapping

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import GpuFacts
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, Why, known
from torchtune_sys.preflight.joint.gathered import Interface, NodeFacts

_NO_QUOTA = 1e6
_PREFIXES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "FI_", "OMP_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_")


def facts_of(seen: Snapshot, name: str, env: Mapping[str, str]) -> NodeFacts:
    """Those that say something where nodes are compared."""
    network, cpu = seen.network, seen.cpu
    interfaces: dict[str, Interface] = {}
    own: tuple[str, ...] | None = None
    if not isinstance(network, Missing):
        for each in known(network.interfaces, ()):
            addresses = tuple(
                (address.address, known(address.prefix_length, 32))
                for address in known(each.addresses, ())
                if address.family == "inet"
            )
            mtu = None if isinstance(each.mtu, Missing) else each.mtu
            interfaces[each.name] = Interface(kind=each.kind, mtu=mtu, addresses=addresses)
        names = network.hostname_addresses
        is_unanswered = isinstance(names, Missing) and names.why not in (Why.ABSENT, Why.FAILED)
        own = None if is_unanswered or not interfaces else known(names, ())
    quota = 0.0 if isinstance(cpu, Missing) else known(cpu.quota, 0.0)
    return NodeFacts(
        name=name,
        env={key: value[:200] for key, value in env.items() if key.startswith(_PREFIXES)},
        interfaces=interfaces,
        own_name_addresses=own,
        kernel=None if isinstance(seen.system, Missing) else _text(seen.system.kernel),
        driver=None if isinstance(seen.driver, Missing) else _text(seen.driver.module_version),
        cpu_model=None if isinstance(cpu, Missing) else _text(cpu.model),
        cpus=None if isinstance(cpu, Missing) or isinstance(cpu.online, Missing) else len(cpu.online),
        cpu_quota=quota if 0 < quota < _NO_QUOTA else None,
        gpus=None if isinstance(seen.gpu, Missing) else _gpus(seen.gpu),
    )


def _text(fact: Fact[str]) -> str | None:
    return None if isinstance(fact, Missing) else fact


def _gpus(gpu: GpuFacts) -> tuple[str, ...] | None:
    return None if isinstance(gpu.devices, Missing) else tuple(known(device.name, "?") for device in gpu.devices)
