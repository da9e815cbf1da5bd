"""Distributions that configure themselves from one description, or that install no packages into the running system."""

from __future__ import annotations

import msgspec


class Appliance(msgspec.Struct, frozen=True, kw_only=True):
    ids: tuple[str, ...]
    """``ID`` of os-release."""
    name: str
    driver: str
    """How it gets a driver, and what is installed else."""
    settings: str = ""
    """Where its settings are made; ``""`` where files in /etc do it as elsewhere."""
    mark: str = ""
    """A path that nothing else has."""
    source: str
    """Where that is described."""


APPLIANCES = (
    Appliance(
        ids=("nixos",),
        name="NixOS",
        mark="/etc/NIXOS",
        settings="set it in configuration.nix (boot.kernel.sysctl, security.pam.loginLimits …) and run nixos-rebuild switch",
        driver="hardware.nvidia and hardware.nvidia-container-toolkit in configuration.nix, then nixos-rebuild switch, and reboot",
        source="https://wiki.nixos.org/wiki/NVIDIA",
    ),
    Appliance(
        ids=("bottlerocket",),
        name="Bottlerocket",
        mark="/usr/share/bottlerocket",
        settings="set it by apiclient set settings.kernel.sysctl… or in the user data",
        driver="take its variant whose name ends in -nvidia, which has driver and container toolkit; train in a container",
        source="https://github.com/bottlerocket-os/bottlerocket/blob/develop/README.md (NVIDIA GPUs Support)",
    ),
    Appliance(
        ids=("talos",),
        name="Talos",
        mark="/etc/talos-release",
        settings="set it in the machine configuration (machine.sysctls, machine.kernel) and apply it by talosctl",
        driver="the extensions nvidia-open-gpu-kernel-modules and nvidia-container-toolkit in its image, then talosctl upgrade; train in a container",
        source="https://docs.siderolabs.com/talos/v1.15/configure-your-talos-cluster/hardware-and-drivers/nvidia-gpu",
    ),
    Appliance(
        ids=("cos",),
        name="Container-Optimized OS",
        settings="set it in the instance's user-data (cloud-init: bootcmd with sysctl -w, write_files), on GKE in linuxConfig of the node "
        "pool: /etc is a tmpfs there, and what is written to it is gone after a restart",
        driver="sudo cos-extensions install gpu (on GKE the node pool installs it); train in a container",
        source="https://cloud.google.com/container-optimized-os/docs/how-to/run-gpus and /concepts/disks-and-filesystem",
    ),
    Appliance(
        ids=("rhcos",),
        name="the machine configuration of OpenShift",
        settings="set it by a MachineConfig or the Node Tuning Operator (oc): another change makes the node degraded",
        driver="NVIDIA's GPU operator brings it; train in a container",
        source="https://docs.nvidia.com/datacenter/cloud-native/openshift/latest/",
    ),
    Appliance(
        ids=("flatcar",),
        name="Flatcar",
        driver="its extension (sysext) of NVIDIA's driver, the only way with Secure Boot, or its nvidia.service, which builds one "
        "(NVIDIA_DRIVER_VERSION in /etc/flatcar/nvidia-metadata); train in a container",
        source="https://www.flatcar.org/docs/latest/setup/customization/using-nvidia",
    ),
    Appliance(
        ids=("ubuntu-core",),
        name="Ubuntu Core",
        driver="take a kernel snap that brings the driver, or Ubuntu Server; train in a container",
        source="https://documentation.ubuntu.com/core/explanation/core-elements/snaps-in-ubuntu-core/",
    ),
    Appliance(
        ids=(
            "sl-micro",
            "sle-micro",
            "suse-microos",
            "opensuse-microos",
            "opensuse-leap-micro",
            "opensuse-aeon",
            "opensuse-kalpa",
        ),
        name="a transactional system of SUSE",
        driver="layer driver and packages (transactional-update pkg install NAME, then reboot); train in a container or a venv",
        source="https://documentation.suse.com/sle-micro/ (Administration using transactional updates)",
    ),
)


def appliance(os_id: str) -> Appliance | None:
    """Return the appliance by ``ID`` of os-release.

    >>> appliance("talos").name, appliance("debian")
    ('Talos', None)
    """
    return next((item for item in APPLIANCES if os_id in item.ids), None)
