"""Faults of kinds that the first four lists lack, written down before ``check`` was run on any: odd control groups, names and interfaces, processors, dangling links, hidden parts of /proc."""

from __future__ import annotations

from live_faults.row import Fault

ROWS = (
    Fault("one-of-two-cpus-offline", "echo 0 | over /sys/devices/system/cpu/online; echo 1 | over /sys/devices/system/cpu/offline; echo 0 | over /sys/devices/system/node/node0/cpulist", "cpus-offline", may="cpu-oversubscribed"),
    Fault("healthy-isolated-cpu", "edit /proc/cmdline 's/$/ isolcpus=1 nohz_full=1 rcu_nocbs=1/'; echo 1 | over /sys/devices/system/cpu/isolated"),
    Fault("steal-of-four-fifths", "edit /proc/stat -E 's/^(cpu[0-9]* +)([0-9]+) ([0-9]+) ([0-9]+) ([0-9]+) ([0-9]+) ([0-9]+) ([0-9]+) [0-9]+/\\190000 \\3 10000 20000 \\6 \\7 \\8 480000/'", "says:steal|says:stolen"),
    Fault("packets-of-576", "ip link set eth0 mtu 576", "ethernet-mtu-small", args="--nnodes 2", mistaken="the rule is on jumbo frames of links of 25 Gb/s and more; a veth tells no speed"),
    Fault("healthy-ipv6-only", "ip addr flush dev eth0; ip -6 addr add 2001:db8::5/64 dev eth0 nodad; printf '127.0.0.1 localhost\\n::1 localhost\\n2001:db8::5 node5\\n' | over /etc/hosts", args="--nnodes 2"),
    Fault("names-hang", "printf '127.0.0.1 localhost\\n' | over /etc/hosts; printf 'nameserver 10.9.0.200\\noptions timeout:30 attempts:5\\n' | over /etc/resolv.conf", "hostname-unresolvable|says:resolve", args="--nnodes 2"),
    Fault("hosts-emptied", ": | over /etc/hosts; : | over /etc/resolv.conf", "says:localhost", args="--nnodes 2", may="hostname-unresolvable localhost-not-loopback"),
    Fault("name-of-another-machine", "printf '127.0.0.1 localhost\\n10.99.9.9 node5\\n' | over /etc/hosts", "says:10.99.9.9", args="--nnodes 2"),
    Fault("name-with-a-domain-nobody-knows", "hostname gpu-node.cluster-1.invalid", "hostname-unresolvable|unknown:hostname-unresolvable", args="--nnodes 2"),
    Fault("only-interface-switched-off", "ip link set eth0 down", "says:eth0|says:interface", args="--nnodes 2"),
    Fault("loader-cache-emptied", ": | over /etc/ld.so.cache", base="gpu"),
    Fault("libcuda-dangles", "cuda_torch; ln -sfn libcuda.so.999.1 /usr/lib/x86_64-linux-gnu/libcuda.so.1; rm /usr/lib/x86_64-linux-gnu/libcuda.so", "says:libcuda", base="gpu"),
    Fault("healthy-allocator-preloaded", "gcc -shared -o $W/libjemalloc.so.2 -x c /dev/null; export LD_PRELOAD=$W/libjemalloc.so.2"),
    Fault("interpreter-dangles", "mkdir -p $W/v/bin; ln -s /opt/python3.11/bin/python3 $W/v/bin/python", "refused:python", args="--python $W/v/bin/python"),
    Fault("metadata-gone", "lay $SITE; rm $SITE/torch-*.dist-info/METADATA"),
    Fault("healthy-folder-named-torch", "mkdir -p $W/p/torch/data; export PYTHONPATH=$W/p", args="--live"),
    Fault("package-named-torch-before-it", "mkdir -p $W/p/torch; echo '__version__ = \"0\"' > $W/p/torch/__init__.py; export PYTHONPATH=$W/p", "torch-import-fails|says:PYTHONPATH|says:p/torch", args="--live"),
    Fault("healthy-little-entropy", "echo 20 | over /proc/sys/kernel/random/entropy_avail"),
    Fault("healthy-hardened", "echo 4 | over /proc/sys/kernel/perf_event_paranoid; mkdir -p $W/y; for f in /proc/sys/kernel/yama/ptrace_scope; do [ -e $f ] && echo 3 | over $f; done; echo 2 | over /proc/sys/kernel/kptr_restrict; echo 1 | over /proc/sys/kernel/dmesg_restrict; RUN='setpriv --no-new-privs'"),
    Fault("pages-of-a-gibibyte", "edit /proc/meminfo 's/^HugePages_Total:.*/HugePages_Total:       0/; s/^Hugetlb:.*/Hugetlb:        12582912 kB/'; lay /sys/kernel/mm; put /sys/kernel/mm/hugepages/hugepages-1048576kB/free_hugepages 12; put /sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages 12", "hugepages-hoard-memory", may="memory-available-low"),
    Fault("healthy-zram", "edit /proc/meminfo 's/^SwapTotal:.*/SwapTotal:      8388604 kB/; s/^SwapFree:.*/SwapFree:        7524288 kB/'; printf 'Filename\\t\\t\\t\\tType\\t\\tSize\\t\\tUsed\\t\\tPriority\\n/dev/zram0                              partition\\t8388604\\t\\t864316\\t\\t100\\n' | over /proc/swaps"),
    Fault("pids-of-the-group-above", "for g in /sys/fs/cgroup/pids; do mkdir -p $g/tt-lab-$$/inner; echo 60 > $g/tt-lab-$$/pids.max; echo $$ > $g/tt-lab-$$/inner/cgroup.procs; done", "cgroup-pids-limit|says:pids.max", args="--nproc-per-node 2 --workers 8"),
    Fault("memory-of-the-group-above", "for g in /sys/fs/cgroup/memory; do mkdir -p $g/tt-lab-$$/inner; echo 629145600 > $g/tt-lab-$$/memory.limit_in_bytes; echo $$ > $g/tt-lab-$$/inner/cgroup.procs; done", "says:600.MiB", args="--nproc-per-node 2", may="cpu-oversubscribed memory-available-low cgroup-memory-tight"),
    Fault("quota-of-the-group-above", "for g in /sys/fs/cgroup/cpu; do mkdir -p $g/tt-lab-$$/inner; echo 20000 > $g/tt-lab-$$/cpu.cfs_quota_us; echo $$ > $g/tt-lab-$$/inner/cgroup.procs; done", "cpu-quota-ignored-by-torch|says:quota", args="--nproc-per-node 2", may="cpu-oversubscribed"),
    Fault("shm-on-a-disk", "disk ext4 8G; mount --bind $W/m /dev/shm", "says:/dev/shm", args="--workers 4 --nproc-per-node 2", may="dataloader-workers-exceed-cpus"),
    Fault("data-links-in-a-circle", "ln -s b $W/a; ln -s a $W/b", "data-path-unreadable|refused:data", args="--data $W/a"),
    Fault("checkpoints-immutable", "disk ext4 20G; mkdir $W/m/ck; chattr +i $W/m/ck", "checkpoints-not-writable", args="--checkpoints $W/m/ck"),
    Fault("healthy-proc-of-processes-alone", "mount -t proc -o subset=pid proc /proc"),
    Fault("gpu-kept-for-a-guest", "mkdir -p /sys/bus/pci/drivers/vfio-pci; ln -sfn ../../../../bus/pci/drivers/vfio-pci $G1/driver; sed -i s/DRIVER=nvidia/DRIVER=vfio-pci/ $G1/uevent; stub 'gpus = 1'; rm /dev/nvidia1", "says:vfio", base="gpu", mistaken="a GPU that is bound to vfio-pci was given to a guest on purpose"),
    Fault("no-device-files-wanted", "export CUDA_VISIBLE_DEVICES=NoDevFiles", "cuda-visible-devices-wrong", base="gpu"),
    Fault("debug-level-unknown", "cuda_torch; export NCCL_DEBUG=WARNING", "nccl-value-ignored|says:WARNING", base="gpu", args="--nproc-per-node 2", may="cpu-oversubscribed"),
    # others of the classes that the rows above were missed for, written down after these were mended and before they ran
    Fault("nvml-dangles", "cuda_torch; ln -sfn libnvidia-ml.so.999.1 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1; rm /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.95.05", "says:libnvidia-ml|driver-tools-fail", base="gpu", may="driver-tools-fail"),
    Fault("healthy-libcuda-by-way-of-alternatives", "mkdir -p $W/alt; mv /usr/lib/x86_64-linux-gnu/libcuda.so.580.95.05 $W/alt/; ln -s $W/alt/libcuda.so.580.95.05 $W/alt/libcuda.so.1; ln -sfn $W/alt/libcuda.so.1 /usr/lib/x86_64-linux-gnu/libcuda.so.1", base="gpu"),
    Fault("checkpoints-link-in-a-circle", "ln -s $W/c1 $W/c2; ln -s $W/c2 $W/c1", "checkpoints-not-writable|refused:checkpoints", args="--checkpoints $W/c1", may="checkpoints-on-volatile-storage"),
    Fault("torch-package-with-a-name-alone", "mkdir -p $W/p/torch; : > $W/p/torch/__init__.py; export PYTHONPATH=$W/p", "says:p/torch", args="--live", may="torch-import-fails"),
    Fault("one-of-two-interfaces-off", "wire eth1 10.8.0.5/24; printf '127.0.0.1 localhost\n10.8.0.5 node5\n' | over /etc/hosts; ip link set eth1 down", "says:eth1", args="--nnodes 2", may="gloo-interface-doubtful"),
    Fault("healthy-unused-interface-off", "wire eth1 10.8.0.5/24; ip link set eth1 down", args="--nnodes 2"),
    Fault("cable-out-of-the-only-interface", "ip link set peth0 down", "says:eth0", args="--nnodes 2", may="gloo-interface-doubtful"),
    Fault("healthy-container-variables", "cuda_torch; export NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility CUDA_DEVICE_ORDER=PCI_BUS_ID NCCL_SOCKET_IFNAME==eth0", base="gpu", args="--nproc-per-node 2", may="cpu-oversubscribed"),
)  # fmt: skip
