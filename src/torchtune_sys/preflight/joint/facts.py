"""What each node tells the others of itself: a few facts out of the snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, known

_PREFIXES = ("NCCL_", "GLOO_", "TORCH_NCCL_", "UCX_", "FI_", "OMP_NUM_THREADS", "CUDA_DEVICE_MAX_CONNECTIONS", "PYTORCH_")


def facts_of(seen: Snapshot, name: str, env: Mapping[str, str]) -> dict[str, Any]:
    """Plain JSON data. What could not be read is left out: nobody is odd for what is not known."""
    found: dict[str, Any] = {"name": name}
    found["env"] = {key: value[:200] for key, value in env.items() if key.startswith(_PREFIXES)}
    if not isinstance(seen.network, Missing):
        interfaces = known(seen.network.interfaces, ())
        found["interfaces"] = {
            each.name: {
                "kind": each.kind,
                "mtu": known(each.mtu, None),
                "addresses": [
                    (address.address, known(address.prefix_length, 32))
                    for address in known(each.addresses, ())
                    if address.family == "inet"
                ],
            }
            for each in interfaces
        }
        found["own_name_addresses"] = list(known(seen.network.hostname_addresses, ())) if interfaces else None
        if isinstance(seen.network.hostname_addresses, Missing) and seen.network.hostname_addresses.why.value != "absent":
            found["own_name_addresses"] = None
    if not isinstance(seen.system, Missing):
        found["kernel"] = known(seen.system.kernel, None)
    if not isinstance(seen.cpu, Missing):
        quota = known(seen.cpu.quota, 0.0)
        found["cpu_quota"] = quota if 0 < quota < 1e6 else None
        online = seen.cpu.online
        found["cpus"] = None if isinstance(online, Missing) else len(online)
        found["cpu_model"] = known(seen.cpu.model, None)
    if not isinstance(seen.driver, Missing):
        found["driver"] = known(seen.driver.module_version, None)
    if not isinstance(seen.gpu, Missing):
        devices = known(seen.gpu.devices, ())
        found["gpus"] = [known(device.name, "?") for device in devices] or None
    return {key: value for key, value in found.items() if value is not None}
