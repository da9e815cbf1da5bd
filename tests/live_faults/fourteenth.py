"""Faults that the first thirteen lists lack, written down before ``check`` was run on any: what people report of variables of a job or a library that are
nearly right, of packages that are too old for torch, of compilers that lack half of what they need, and of disks that say so in the log; and oddities
that break nothing.

Every third row from the second on (``SEALED``) was kept shut until what the others asked for was mended. The order is that of a hash of the names.
"""

from __future__ import annotations

from live_faults.row import Fault

ROWS = (
    Fault("sympy-of-last-year", "lay $SITE; mv $SITE/sympy-1.14.0.dist-info $SITE/sympy-1.12.dist-info; sed -i 's/^Version: .*/Version: 1.12/' $SITE/sympy-1.12.dist-info/METADATA", "says:sympy", severity="error|warning"),
    Fault("headers-of-python-gone", "cuda_torch; mount -t tmpfs tmpfs $(dirname $(dirname $(readlink -f $PY)))/include/python3.11", "says:Python.h", base="gpu", severity="error|warning|advice"),
    Fault("headers-of-c-gone", "cuda_torch; mount -t tmpfs tmpfs /usr/include", "says:headers|says:libc6-dev|says:stdlib.h", base="gpu", severity="error|warning|advice"),
    Fault("numpy-never-installed", "lay $SITE; rm -r $SITE/numpy*", "says:[Nn]um[Pp]y", severity="error|warning|advice"),
    Fault("rank-is-the-world-size", "export RANK=8 WORLD_SIZE=8 MASTER_ADDR=10.9.0.5 MASTER_PORT=29500", "says:WORLD_SIZE", severity="error|warning"),  # counted from 1
    Fault("ptx-forced", "cuda_torch; export CUDA_FORCE_PTX_JIT=1", "says:CUDA_FORCE_PTX_JIT", base="gpu", severity="error|warning"),
    Fault("healthy-single-threads-per-core-and-no-mitigations", "lay /sys; put /sys/devices/system/cpu/smt/control off; put /sys/devices/system/cpu/smt/active 0; echo $(cat /proc/cmdline) mitigations=off nosmt processor.max_cstate=1 intel_idle.max_cstate=1 idle=poll | over /proc/cmdline"),
    Fault("healthy-logs-of-torch", "export TORCH_LOGS='+dynamo,-aot,recompiles,torch.distributed' TORCH_CPP_LOG_LEVEL=INFO TORCH_DISTRIBUTED_DEBUG=INFO"),
    Fault("weights-of-torch-hub-closed", "mkdir -m 700 $W/hub; export TORCH_HOME=$W/hub", "says:TORCH_HOME", user=1000, severity="warning|advice"),
    Fault("name-is-the-bridge-of-containers", "wire docker0 172.17.0.1/16; printf '127.0.0.1 localhost\\n172.17.0.1 node5\\n' | over /etc/hosts", "says:docker0|says:172.17.0.1", args="--nnodes 2", severity="error|warning"),
    Fault("ldconfig-is-gone", "cuda_torch; lay /usr/sbin; rm /usr/sbin/ldconfig", "says:ldconfig", base="gpu", severity="error|warning|advice"),  # triton asks /sbin/ldconfig
    Fault("gloo-is-told-what-to-leave-out", "wire eth1 10.20.0.5/24; export GLOO_SOCKET_IFNAME=^eth1,lo", "says:GLOO_SOCKET_IFNAME", args="--nnodes 2", severity="error"),
    Fault("workspace-setting-without-its-colon", "cuda_torch; export CUBLAS_WORKSPACE_CONFIG=4096:8", "says:CUBLAS_WORKSPACE_CONFIG", base="gpu", severity="error|warning|advice"),
    Fault("infiniband-gives-up-early", "i=$D0/0000:1b:00.0; port $i 'DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021\nPCI_SLOT_NAME=0000:1b:00.0' 0x020700 0x15b3:0x1021; p=$i/infiniband/mlx5_0; put $p/ports/1/state '4: ACTIVE'; put $p/ports/1/phys_state '5: LinkUp'; put $p/ports/1/rate '400 Gb/sec (4X NDR)'; put $p/ports/1/link_layer InfiniBand; put $p/ports/1/lid 0x7; put $p/ports/1/sm_lid 0x1; put $p/node_type '1: CA'; put $p/fw_ver 28.43.1014; mkdir -p /sys/class/infiniband; ln -s ../../devices/${p#/sys/devices/} /sys/class/infiniband/mlx5_0; ln -s ../../../0000:1b:00.0 $p/device; cuda_torch; export NCCL_IB_TIMEOUT=5 NCCL_IB_RETRY_CNT=1", "says:NCCL_IB_TIMEOUT", base="gpu", args="--nnodes 2", severity="warning|advice", may="gpudirect-rdma-disabled rdma-driver-not-loaded memlock-limit-too-low"),
    Fault("healthy-name-with-an-underscore", "hostname Node_5; printf '127.0.0.1 localhost\\n10.9.0.5 Node_5 node_5.cluster.local\\n' | over /etc/hosts", args="--nnodes 2"),
    Fault("thin-pool-has-no-room", "printf '6,1,100000,-;Linux version 6.8.0-45-generic\\n4,900,5000000000,-;device-mapper: thin: 253:2: switching pool to out-of-data-space (queue IO) mode\\n' | over /dev/kmsg", "says:253:2|disk-errors-logged|disk-full", severity="error|warning"),
    Fault("healthy-second-address-on-an-interface", "ip addr add 10.9.0.77/24 dev eth0; ip addr add 169.254.7.7/16 dev eth0; export MASTER_ADDR=10.9.0.77 MASTER_PORT=29500", args="--nnodes 2"),
    Fault("healthy-log-of-btrfs-and-raid", "printf '6,1,100000,-;Linux version 6.8.0-45-generic\\n6,900,5000000000,-;BTRFS info (device vda2): using crc32c (crc32c-intel) checksum algorithm\\n6,901,5000000100,-;BTRFS info (device vda2): bdev /dev/vda2 errs: wr 0, rd 0, flush 0, corrupt 7, gen 0\\n6,902,5000000200,-;md/raid1:md0: active with 2 out of 2 mirrors\\n6,903,5000000300,-;md: data-check of RAID array md0\\n6,904,5000000400,-;md: md0: data-check done.\\n4,905,5000000500,-;device-mapper: thin: Data device (dm-3) discard unsupported: Disabling discard passdown.\\n' | over /dev/kmsg"),
    Fault("healthy-hubs-behind-a-mirror", "mkdir -m 777 $W/hub; export HF_ENDPOINT=https://hf-mirror.com HF_HOME=$W/hub TORCH_HOME=$W/hub/torch HF_HUB_DISABLE_TELEMETRY=1 HF_HUB_DISABLE_XET=1 TOKENIZERS_PARALLELISM=true"),
    Fault("half-of-a-mirror-is-gone", "printf '6,1,100000,-;Linux version 6.8.0-45-generic\\n2,900,5000000000,-;md/raid1:md0: Disk failure on sdb1, disabling device.\\n2,901,5000000100,-;md/raid1:md0: Operation continuing on 1 devices.\\n' | over /dev/kmsg", "says:md0|disk-errors-logged", severity="error|warning"),
    Fault("master-of-another-job", "printf '127.0.0.1 localhost\\n10.9.0.5 node5\\n10.9.0.6 node6\\n10.9.0.9 node9\\n' | over /etc/hosts; export SLURM_JOB_ID=7 SLURM_JOB_NODELIST=node[5-6] SLURM_NNODES=2 MASTER_ADDR=node9 MASTER_PORT=29500", "says:node9|says:MASTER_ADDR", args="--nnodes 2", severity="warning|advice|error"),
    Fault("typing-extensions-too-old", "lay $SITE; mv $SITE/typing_extensions-4.16.0.dist-info $SITE/typing_extensions-4.5.0.dist-info; sed -i 's/^Version: .*/Version: 4.5.0/' $SITE/typing_extensions-4.5.0.dist-info/METADATA", "says:typing.extensions", severity="error|warning"),
    Fault("healthy-swap-in-compressed-memory", "lay /sys; mkdir -p /sys/module/zswap/parameters; echo Y > /sys/module/zswap/parameters/enabled; echo 512 > /sys/kernel/mm/transparent_hugepage/khugepaged/max_ptes_none"),
    Fault("compile-cache-is-a-file", "echo x > $W/tt; chmod 666 $W/tt; export TRITON_CACHE_DIR=$W/tt TORCHINDUCTOR_CACHE_DIR=$W/tt", "says:TORCHINDUCTOR_CACHE_DIR|compile-cache-not-writable", severity="error|warning"),
    Fault("healthy-two-tasks-of-one-rank-each", "printf '127.0.0.1 localhost\\n10.9.0.5 node5\\n10.9.0.6 node6\\n' | over /etc/hosts; export SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_NTASKS_PER_NODE=1 SLURM_STEP_TASKS_PER_NODE='1(x2)' SLURM_NNODES=2 SLURM_JOB_NODELIST=node[5-6] MASTER_ADDR=node6 MASTER_PORT=29500", args="--nnodes 2 --nproc-per-node 1"),
    Fault("gloo-is-given-a-prefix", "export GLOO_SOCKET_IFNAME=eth", "says:GLOO_SOCKET_IFNAME", args="--nnodes 2", severity="error"),
    Fault("connections-flood-the-rendezvous", "printf '6,1,100000,-;Linux version 6.8.0-45-generic\\n6,900,5000000000,-;TCP: request_sock_TCP: Possible SYN flooding on port [::]:29500. Sending cookies.\\n' | over /dev/kmsg", "says:29500|says:SYN", severity="warning|advice"),
    Fault("driver-put-aside-by-prime-select", "rm -r /proc/driver/nvidia /sys/module/nvidia /sys/module/nvidia_uvm /dev/nvidia*; for g in $G0 $G1; do rm $g/driver; sed -i /DRIVER/d $g/uevent; done; lay /lib/modprobe.d; printf 'blacklist nvidia\\nblacklist nvidia-drm\\nblacklist nvidia-modeset\\nalias nvidia off\\nalias nvidia-drm off\\nalias nvidia-modeset off\\n' > /lib/modprobe.d/blacklist-nvidia.conf", "says:blacklist-nvidia.conf", base="gpu", severity="error|warning", may="nvidia-driver-not-loaded driver-tools-fail nvidia-module-not-built-for-kernel"),
    Fault("master-is-link-local-without-its-interface", "export MASTER_ADDR=fe80::1c2:33ff:fe44:5566 MASTER_PORT=29500", "says:fe80", args="--nnodes 2", severity="error|warning"),
    Fault("checksums-of-btrfs-do-not-match", "printf '6,1,100000,-;Linux version 6.8.0-45-generic\\n4,900,5000000000,-;BTRFS warning (device vda2): csum failed root 5 ino 257 off 131072 csum 0x8941f998 expected csum 0x93413794 mirror 1\\n3,901,5000000100,-;BTRFS error (device vda2): bdev /dev/vda2 errs: wr 0, rd 0, flush 0, corrupt 7, gen 0\\n' | over /dev/kmsg", "says:vda2|disk-errors-logged", severity="error|warning"),
    Fault("log-of-no-such-part", "export TORCH_LOGS=+dynamoo", "says:TORCH_LOGS", severity="error"),  # ValueError at import torch
    Fault("healthy-ports-for-all", "sysctl -qw net.ipv4.ip_unprivileged_port_start=0; export MASTER_ADDR=10.9.0.5 MASTER_PORT=443", user=1000),
    Fault("each-of-two-tasks-starts-torchrun", "export SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_STEP_TASKS_PER_NODE=2 SLURM_NNODES=1 SLURM_STEP_NUM_NODES=1 SLURM_JOB_NODELIST=node5", "says:tasks|says:SLURM_NTASKS|says:SLURM_STEP", base="gpu", args="--nproc-per-node 2", severity="warning|advice"),
    Fault("fast-transfer-without-its-package", "lay $SITE; mkdir $SITE/huggingface_hub $SITE/huggingface_hub-0.34.4.dist-info; echo \"__version__ = '0.34.4'\" > $SITE/huggingface_hub/__init__.py; printf 'Metadata-Version: 2.1\\nName: huggingface-hub\\nVersion: 0.34.4\\n' > $SITE/huggingface_hub-0.34.4.dist-info/METADATA; export HF_HUB_ENABLE_HF_TRANSFER=1", "says:HF_HUB_ENABLE_HF_TRANSFER", severity="error|warning"),
    Fault("healthy-settings-of-megatron", "cuda_torch; export CUDA_DEVICE_MAX_CONNECTIONS=1 TORCH_NCCL_AVOID_RECORD_STREAMS=1 NCCL_NVLS_ENABLE=0 NVTE_FUSED_ATTN=1 PYTORCH_NVML_BASED_CUDA_CHECK=1 TORCH_SHOW_CPP_STACKTRACES=1", base="gpu"),
    Fault("group-hangs-instead-of-killing", "group memory memory.oom_control 1; echo 2G > /sys/fs/cgroup/memory/tt-lab-$$/memory.limit_in_bytes", "says:oom_control|says:oom_kill_disable", severity="warning|error", may="cgroup-memory-tight cgroup-memory-far-below-host"),
)  # fmt: skip

SEALED = tuple(row.name for row in ROWS[1::3])
