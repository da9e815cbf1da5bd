"""What gives a container its GPUs, a kernel setting of its network, and a limit, by what started it: none takes the options of another."""

from __future__ import annotations

import msgspec


class ContainerWays(msgspec.Struct, frozen=True, kw_only=True):
    gpus: str
    sysctl: str = ""
    """Takes ``key``; ``""`` where the host sets it."""
    limit: str
    """Takes ``item`` of limits.conf(5), and ``unit``, as systemd.exec(5) calls it."""


_OTHER = ContainerWays(gpus="by its runtime's own option", limit="raise the limit {item} of what starts the container")
_WAYS = {
    "docker": ContainerWays(
        gpus="docker run --gpus all",
        sysctl="start the container with --sysctl {key}=…",
        limit="give the container its own limit: --ulimit {item}=…",
    ),
    "podman": ContainerWays(
        gpus="podman run --device nvidia.com/gpu=all",
        sysctl="start the container with --sysctl {key}=…",
        limit="give the container its own limit: --ulimit {item}=…",
    ),
    "kubernetes": ContainerWays(
        gpus="nvidia.com/gpu under resources.limits of the pod",
        sysctl="securityContext.sysctls of the pod: name {key}",
        limit="raise the runtime's limit {item}: {unit}= of the node's unit containerd or crio, by systemctl edit",
    ),
    "apptainer": ContainerWays(
        gpus="apptainer exec --nv",
        limit="raise the limit {item} of the shell or the job that starts apptainer: the container has that one",
    ),
    "lxc": ContainerWays(
        gpus="LXC: lxc.mount.entry and lxc.cgroup2.devices.allow for /dev/nvidia*; Incus, LXD: config device add NAME gpu gpu",
        sysctl="lxc.sysctl.{key} = … in the container's configuration",
        limit="lxc.prlimit.{item} = … in the container's configuration (Incus, LXD: limits.kernel.{item})",
    ),
    "nspawn": ContainerWays(
        gpus="Bind=/dev/nvidia… under [Files] of its .nspawn file, and DeviceAllow= of its unit",
        limit="{unit}=… under [Exec] of its .nspawn file",
    ),
}
"""Sources: docker-run(1), podman-run(1); kubernetes.io, Using sysctls in a Kubernetes Cluster and Schedule GPUs; apptainer.org, GPU Support;
lxc.container.conf(5) and the options of Incus's instances; systemd.nspawn(5)."""


def ways(kind: str) -> ContainerWays:
    """Return the ways of a kind of container, as the fact ``system.container`` calls it.

    >>> ways("nspawn").limit.format(item="nofile", unit="LimitNOFILE"), ways("other").sysctl
    ('LimitNOFILE=… under [Exec] of its .nspawn file', '')
    """
    return _WAYS.get(kind, _OTHER)
