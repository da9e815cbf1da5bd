"""Faults of kinds that the first three lists lack, written down before ``check`` was run on any: limits of a shell's other kinds, kernel settings, nodes of a container in a container, states of GPUs."""

from __future__ import annotations

from live_faults.row import Fault

ROWS = (
    Fault("processor-time-60s", "ulimit -t 60", "cpu-time-limit|says:time.is.limited"),
    Fault("processor-time-soft-only", "ulimit -St 3600", "cpu-time-limit|says:time.is.limited"),
    Fault("stack-64k", "ulimit -s 64", "says:stack"),
    Fault("file-max-1500", "echo 1500 | over /proc/sys/fs/file-max", "says:file-max", args="--workers 8 --nproc-per-node 2"),
    Fault("threads-max-150", "echo 150 | over /proc/sys/kernel/threads-max", "task-table-small", args="--nproc-per-node 2 --workers 8"),
    Fault("overcommit-never", "echo 2 | over /proc/sys/vm/overcommit_memory", "overcommit-strict"),
    Fault("hugepages-20g", "edit /proc/meminfo 's/^HugePages_Total:.*/HugePages_Total:   10240/; s/^HugePages_Free:.*/HugePages_Free:    10240/; s/^Hugetlb:.*/Hugetlb:        20971520 kB/'", "hugepages-hoard-memory", may="memory-available-low"),
    Fault("swapped-out", "edit /proc/meminfo 's/^SwapTotal:.*/SwapTotal:      8388604 kB/; s/^SwapFree:.*/SwapFree:        524288 kB/; s/^MemAvailable:.*/MemAvailable:    900000 kB/'; printf 'Filename\\t\\t\\t\\tType\\t\\tSize\\t\\tUsed\\t\\tPriority\\n/swapfile                               file\\t\\t8388604\\t\\t7864316\\t\\t-2\\n' | over /proc/swaps", "swap-in-use|memory-available-low", may="swap-in-use memory-available-low swappiness-high host-small-for-gpu-training cgroup-memory-tight"),
    Fault("torch-module-beside-the-script", "mkdir $W/p; echo 'x = 1' > $W/p/torch.py; export PYTHONPATH=$W/p", "says:torch.py", may="torch-import-fails", args="--live"),
    Fault("empty-libstdc++", "mkdir $W/l; gcc -shared -o $W/l/libstdc++.so.6 -x c /dev/null; export LD_LIBRARY_PATH=$W/l", "libstdcxx-too-old|torch-import-fails", may="torch-import-fails libstdcxx-too-old", args="--live"),
    Fault("accept-queue-16", "sysctl -qw net.core.somaxconn=16", "somaxconn-low", args="--nnodes 64 --nproc-per-node 1", may="cpu-oversubscribed", mistaken="64 connections at once are not said to be too many: one that finds no room is tried again a second later"),
    Fault("tcp-buffers-4k", "sysctl -qw 'net.ipv4.tcp_rmem=4096 4096 4096' 'net.ipv4.tcp_wmem=4096 4096 4096'", "tcp-buffer-ceiling-low", args="--nnodes 4"),
    Fault("strict-reverse-path", "wire eth1 10.8.0.5/24; sysctl -qw net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.eth1.rp_filter=1 net.ipv4.conf.eth0.rp_filter=1", "rp-filter-strict", args="--nnodes 4", mistaken="each interface has a subnet of its own, so that the route back is the same one"),
    Fault("master-is-this-host-only", "export MASTER_ADDR=127.0.0.1 MASTER_PORT=29500", "says:MASTER_ADDR|says:127.0.0.1", args="--nnodes 2"),
    Fault("names-of-another-version", "mv /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05 /usr/lib/x86_64-linux-gnu/libcuda.so.575.57.08; ln -sfn libcuda.so.575.57.08 /usr/lib/x86_64-linux-gnu/libcuda.so.1; mv /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.575.57.08; ln -sfn libnvidia-ml.so.575.57.08 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1; stub 'nvmlInitWithFlags = !18' 'nvmlInit_v2 = !18'", "nvml-driver-library-mismatch", base="gpu"),
    Fault("gpu-lost", "stub 'nvmlDeviceGetTemperature@1 = !15' 'nvmlDeviceGetUtilizationRates@1 = !15' 'nvmlDeviceGetMemoryInfo@1 = !15' 'nvmlDeviceGetEccMode@1 = !15' 'nvmlDeviceGetPersistenceMode@1 = !15'", "gpu-fallen-off-bus|xid-gpu-lost|says:lost", base="gpu"),
    Fault("remapping-failed", "stub 'nvmlDeviceGetRemappedRows@1 = 0 3 0 1'", "gpu-row-remap-failed", base="gpu"),
    Fault("correction-off", "stub 'nvmlDeviceGetEccMode@0 = 0 0'", "gpu-ecc-off", base="gpu"),
    Fault("partitioned-in-part", "stub 'nvmlDeviceGetMigMode@1 = 1 1'", "mig-mode-limits", base="gpu", args="--nproc-per-node 2", may="cpu-oversubscribed"),
    Fault("peers-only-near", "cuda_torch; export NCCL_P2P_LEVEL=LOC", "nccl-p2p-disabled", base="gpu", args="--nproc-per-node 2", may="cpu-oversubscribed"),
    Fault("algorithm-misspelt", "cuda_torch; export NCCL_ALGO=Trees", "nccl-value-ignored|says:Trees", base="gpu", args="--nproc-per-node 2", may="cpu-oversubscribed"),
    Fault("caching-off", "cuda_torch; export PYTORCH_NO_CUDA_MEMORY_CACHING=1", "cuda-caching-allocator-disabled", base="gpu"),
    Fault("nodes-for-root", "chmod 600 /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm", "gpu-device-permission", base="gpu", user=65534),
    Fault("apptainer-without-nv", "cuda_torch; rm /usr/lib/x86_64-linux-gnu/libcuda.so* /usr/lib/x86_64-linux-gnu/libnvidia-ml.so*; export APPTAINER_CONTAINER=/images/t.sif APPTAINER_NAME=t.sif SINGULARITY_CONTAINER=/images/t.sif; lay / 2>/dev/null || true; mkdir -p /.singularity.d && touch /.singularity.d/runscript", "driver-tools-fail", base="gpu"),
    Fault("enroot-with-void", "cuda_torch; export ENROOT_ROOTFS=/run/enroot NVIDIA_VISIBLE_DEVICES=void SLURM_JOB_ID=4 SLURM_JOBID=4; rm /dev/nvidia0 /dev/nvidia1 /dev/nvidiactl /dev/nvidia-uvm; rm /usr/lib/x86_64-linux-gnu/libcuda.so* /usr/lib/x86_64-linux-gnu/libnvidia-ml.so*", "says:NVIDIA_VISIBLE_DEVICES", base="gpu"),
    Fault("healthy-memory-reservation", "for g in /sys/fs/cgroup/memory; do mkdir -p $g/tt-lab-$$; echo 104857600 > $g/tt-lab-$$/memory.soft_limit_in_bytes; echo $$ > $g/tt-lab-$$/cgroup.procs; done"),
    Fault("healthy-few-shares", "for g in /sys/fs/cgroup/cpu; do mkdir -p $g/tt-lab-$$; echo 2 > $g/tt-lab-$$/cpu.shares; echo $$ > $g/tt-lab-$$/cgroup.procs; done"),
    Fault("healthy-locale", "export LANG=de_DE.UTF-8 LC_ALL=tr_TR.UTF-8 LANGUAGE=de TZ=Asia/Kathmandu"),
    Fault("healthy-master-by-own-address", "export MASTER_ADDR=10.9.0.5 MASTER_PORT=29511", args="--nnodes 2"),
    Fault("healthy-resident-limit", "ulimit -m 1048576; ulimit -i 100; ulimit -q 4096; ulimit -e 0"),
)  # fmt: skip
