"""Of the opened faults those of a host with GPUs."""

from __future__ import annotations

from live_faults.row import Fault

ROWS: tuple[Fault, ...] = (
    Fault("address-space-4g", "ulimit -v 4194304", "address-space-limit", base="gpu"),
    Fault(
        "nccl-name-with-blank",
        "cuda_torch; export NCCL_SOCKET_IFNAME='eth1, eth0'",
        "nccl-socket-ifname-syntax|nccl-wrong-interface",
        args="--nnodes 2",
        base="gpu",
    ),
    Fault(
        "nccl-names-nothing", "cuda_torch; export NCCL_SOCKET_IFNAME=ens5", "nccl-wrong-interface", args="--nnodes 2", base="gpu"
    ),
    Fault(
        "nouveau-took-it",
        "rm -r /proc/driver/nvidia /sys/module/nvidia /sys/module/nvidia_uvm /dev/nvidia*; put /sys/module/nouveau/refcnt 5; mkdir -p /sys/bus/pci/drivers/nouveau; for g in $G0 $G1; do rm $g/driver; ln -s ../../../../bus/pci/drivers/nouveau $g/driver; sed -i s/nvidia/nouveau/ $g/uevent; done; stub 'nvmlInitWithFlags = !9'",
        "nouveau-loaded",
        may="driver-tools-fail",
        base="gpu",
    ),
    Fault(
        "module-not-loaded",
        "rm -r /proc/driver/nvidia /sys/module/nvidia /sys/module/nvidia_uvm /dev/nvidia*; for g in $G0 $G1; do rm $g/driver; sed -i /DRIVER/d $g/uevent; done; stub 'nvmlInitWithFlags = !9'",
        "nvidia-driver-not-loaded|nvidia-module-not-built-for-kernel",
        base="gpu",
    ),
    Fault(
        "library-of-another-driver",
        "sed -i 's/580.95.05/570.133.20/' /proc/driver/nvidia/version /sys/module/nvidia/version; stub 'nvmlInitWithFlags = !18'",
        "nvml-driver-library-mismatch",
        base="gpu",
    ),
    Fault(
        "nodes-of-root-alone",
        "chmod 600 /dev/nvidia*; stub 'nvmlInitWithFlags = !4'",
        "gpu-device-permission",
        base="gpu",
        user=65534,
    ),
    Fault(
        "gpu-off-the-bus",
        "stub 'nvmlDeviceGetHandleByIndex_v2@1 = !15'",
        "gpu-fallen-off-bus|gpu-missing-from-driver",
        base="gpu",
    ),
    Fault("gpu-gone-from-pci-too", "stub 'gpus = 1'", "gpu-missing-from-driver", base="gpu"),
    Fault("nvml-hangs", "stub 'nvmlInitWithFlags = hang'", "says:NVML|driver-tools-fail", base="gpu"),
    Fault("nvml-crashes-later", "stub 'nvmlDeviceGetRemappedRows = crash'", "unknown:gpu-row-remap-failed", base="gpu"),
    Fault(
        "generation-1",
        "echo '2.5 GT/s PCIe' > $G0/current_link_speed; echo '2.5 GT/s PCIe' > $D0/current_link_speed; echo 3 > $D0/current_link_width; echo 1 > $G0/current_link_width; echo 1 > $D0/current_link_width",
        "gpu-pcie-link-degraded",
        base="gpu",
    ),
    Fault("all-gpus-hidden", "export CUDA_VISIBLE_DEVICES=", "cuda-visible-devices-wrong", base="gpu"),
    Fault("ranks-8-on-2-gpus", ":", "several-ranks-on-one-gpu", may="cpu-oversubscribed", args="--nproc-per-node 8", base="gpu"),
    Fault("uvm-not-loaded", "rm -r /sys/module/nvidia_uvm /dev/nvidia-uvm", "nvidia-uvm-not-loaded|says:nvidia-uvm", base="gpu"),
    Fault(
        "port-of-infiniband-down",
        "i=$D0/0000:1b:00.0; port $i 'DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021\nPCI_SLOT_NAME=0000:1b:00.0' 0x020700 0x15b3:0x1021; p=$i/infiniband/mlx5_0; put $p/ports/1/state '1: DOWN'; put $p/ports/1/phys_state '2: Polling'; put $p/ports/1/rate '10 Gb/sec (4X SDR)'; put $p/ports/1/link_layer InfiniBand; put $p/ports/1/lid 0x0; put $p/ports/1/sm_lid 0x0; put $p/node_type '1: CA'; put $p/fw_ver 28.43.1014; mkdir -p /sys/class/infiniband; ln -s ../../devices/${p#/sys/devices/} /sys/class/infiniband/mlx5_0; ln -s ../../../0000:1b:00.0 $p/device",
        "ib-port-down",
        may="gpudirect-rdma-disabled rdma-driver-not-loaded",
        args="--nnodes 2",
        base="gpu",
    ),
    Fault(
        "infiniband-waits-for-its-manager",
        "i=$D0/0000:1b:00.0; port $i 'DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021\nPCI_SLOT_NAME=0000:1b:00.0' 0x020700 0x15b3:0x1021; p=$i/infiniband/mlx5_0; put $p/ports/1/state '2: INIT'; put $p/ports/1/phys_state '5: LinkUp'; put $p/ports/1/rate '400 Gb/sec (4X NDR)'; put $p/ports/1/link_layer InfiniBand; put $p/ports/1/lid 0x0; put $p/ports/1/sm_lid 0x0; put $p/node_type '1: CA'; put $p/fw_ver 28.43.1014; mkdir -p /sys/class/infiniband; ln -s ../../devices/${p#/sys/devices/} /sys/class/infiniband/mlx5_0; ln -s ../../../0000:1b:00.0 $p/device",
        "ib-subnet-manager-missing",
        may="gpudirect-rdma-disabled rdma-driver-not-loaded",
        args="--nnodes 2",
        base="gpu",
    ),
    Fault(
        "acs-of-ports",
        "for g in $G0 $G1; do put $g/iommu_group/type DMA; done; mkdir -p /sys/class/iommu/dmar0 /sys/kernel/iommu_groups/1; echo $(cat /proc/cmdline) intel_iommu=on | over /proc/cmdline",
        "iommu-translates-gpu-traffic|says:iommu|says:IOMMU",
        base="gpu",
    ),
)
