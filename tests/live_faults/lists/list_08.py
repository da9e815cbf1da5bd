"""Faults of places that the first seven lists lack, written down before ``check`` was run on any: what the interpreter refuses at its start, ports and routes of the master, device files of another boot, room that is used up, clocks.

Every third row from the third on (``SEALED``) was kept shut until what the others asked for was mended. The order is that of a hash of the names.
"""

from __future__ import annotations

from live_faults.row import Fault

ROWS = (
    Fault("healthy-second-gpu-alone", "cuda_torch; export CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1", base="gpu", args="--nproc-per-node 1"),
    Fault("visible-list-begins-with-minus-one", "cuda_torch; export CUDA_VISIBLE_DEVICES=-1,0,1", "says:CUDA_VISIBLE_DEVICES", base="gpu", severity="error|warning"),
    Fault("checkpoints-without-inodes", "disk ext4 20G defaults '-N 16'; touch $W/m/1 $W/m/2 $W/m/3 $W/m/4 $W/m/5 $W/m/6 $W/m/7 $W/m/8 2>/dev/null || true", "says:inode", args="--checkpoints $W/m", severity="warning|error", mistaken="mke2fs gives each of 160 groups 16 inodes: 2,541 are free"),
    Fault("stacks-of-a-terabyte", "export OMP_STACKSIZE=100T", "says:OMP_STACKSIZE", severity="error|warning", mistaken="libgomp has no unit T: it says that the value is invalid, and takes the usual stack (tried with torch 2.13); 64G would end it"),
    Fault("healthy-disk-of-its-own", "disk xfs 20G noatime; mkdir $W/m/data $W/m/ck", args="--data $W/m/data --checkpoints $W/m/ck"),
    Fault("neighbour-table-of-8", "echo 4 | over /proc/sys/net/ipv4/neigh/default/gc_thresh1; echo 8 | over /proc/sys/net/ipv4/neigh/default/gc_thresh2; echo 8 | over /proc/sys/net/ipv4/neigh/default/gc_thresh3", "says:gc_thresh", args="--nnodes 64", severity="warning|error"),
    Fault("writers-wait-at-64k", "echo 65536 | over /proc/sys/vm/dirty_bytes; echo 0 | over /proc/sys/vm/dirty_ratio", "says:dirty", severity="advice|warning"),
    Fault("gpu-node-of-another-minor", "cuda_torch; rm /dev/nvidia0; mknod -m 666 /dev/nvidia0 c 195 7", "says:/dev/nvidia0", base="gpu", severity="error|warning"),
    Fault("kernel-checks-its-own-memory", "edit /proc/cmdline 's/^/slub_debug=FZPU /'", "says:slub_debug", severity="advice|warning"),
    Fault("half-duplex", "lay /sys; d=$(readlink -f /sys/class/net/eth0); put $d/speed 100; put $d/duplex half", "says:duplex|says:100.?[mM]b", args="--nnodes 2", severity="warning|error", mistaken="the interface of this row is a veth pair, which has no speed of its own; a wired one at half duplex is told"),
    Fault("healthy-threads-set-by-hand", "export OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OMP_PROC_BIND=close OMP_SCHEDULE=static OMP_MAX_ACTIVE_LEVELS=1", args="--nproc-per-node 2", mistaken="OMP_PROC_BIND=close binds both ranks to CPU 0 (sched_getaffinity after import torch): the finding is true", may="openmp-affinity-pins-process"),
    Fault("route-to-the-master-forbidden", "ip route add unreachable 10.9.0.77/32; export MASTER_ADDR=10.9.0.77 MASTER_PORT=29500", "says:10.9.0.77|says:unreachable", args="--nnodes 2", severity="error|warning"),
    Fault("lost-segments-not-told", "sysctl -qw net.ipv4.tcp_sack=0", "says:tcp_sack", args="--nnodes 4", severity="warning|advice"),
    Fault("shm-for-root-alone", "mount -t tmpfs -o mode=755,size=8G tmpfs /dev/shm", "says:/dev/shm", args="--workers 1", user=65534, severity="error|warning"),
    Fault("shm-filled-by-leftovers", "mount -t tmpfs -o size=256M tmpfs /dev/shm; dd if=/dev/zero of=/dev/shm/torch_4711_1 bs=1M count=250 2>/dev/null", "says:/dev/shm", args="--workers 2", severity="error|warning"),
    Fault("libraries-of-numpy-gone", "lay $SITE; rm -r $SITE/numpy.libs", "says:numpy", severity="error|warning"),
    Fault("allocator-of-python-unknown", "export PYTHONMALLOC=jemalloc", "says:PYTHONMALLOC", severity="error|warning"),
    Fault("healthy-three-hundred-mounts", "for i in $(seq 300); do mkdir $W/m$i; mount -t tmpfs -o size=1m tmpfs $W/m$i; done"),
    Fault("healthy-library-path-of-modules", "export LD_LIBRARY_PATH=/opt/nope/lib:/usr/lib/x86_64-linux-gnu MODULEPATH=/usr/share/modulefiles LOADEDMODULES=gcc/13.2 LIBRARY_PATH=/opt/nope/lib"),
    Fault("tmp-of-ten-megabytes", "mount -t tmpfs -o size=10m,mode=1777 tmpfs /tmp", "says:/tmp", args="--workers 2", severity="warning|advice"),
    Fault("hash-seed-refused", "export PYTHONHASHSEED=abc", "says:PYTHONHASHSEED", severity="error|warning"),
    Fault("uncorrected-errors-of-the-memory", "lay /sys; put /sys/devices/system/edac/mc/mc0/ue_count 3; put /sys/devices/system/edac/mc/mc0/ce_count 12; put /sys/devices/system/edac/mc/mc0/mc_name skx; put /sys/devices/system/edac/mc/mc0/seconds_since_reset 86400", "says:edac|says:EDAC|says:uncorrect", severity="warning|error"),
    Fault("healthy-bridge-of-containers", "ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up; ip link add veth9 type veth peer name veth9p; ip link set veth9 master docker0", args="--nnodes 2"),
    Fault("every-interface-excluded", "cuda_torch; export NCCL_SOCKET_IFNAME=^eth,lo", "says:NCCL_SOCKET_IFNAME", base="gpu", args="--nnodes 2", severity="error|warning", left="the other end of the lab's cable (peth0) has a link-local address, which NCCL would take"),
    Fault("home-has-no-room", "mount -t tmpfs -o size=1m tmpfs $HOME; chmod 777 $HOME; dd if=/dev/zero of=$HOME/core bs=64k 2>/dev/null || true", "says:home", severity="warning|error"),
    Fault("encoding-unknown", "export PYTHONIOENCODING=utf9", "says:PYTHONIOENCODING|says:utf9", severity="error|warning"),
    Fault("healthy-below-slurm", "export SLURM_JOB_ID=812 SLURM_NTASKS=1 SLURM_NPROCS=1 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_JOB_NUM_NODES=1 SLURM_NNODES=1 SLURM_JOB_NODELIST=node5 SLURM_NODELIST=node5 SLURMD_NODENAME=node5 SLURM_CPUS_ON_NODE=2"),
    Fault("machine-named-i686", "RUN='setarch linux32'", "says:i686|says:personality", severity="advice|warning"),
    Fault("clock-by-hpet", "lay /sys; put /sys/devices/system/clocksource/clocksource0/current_clocksource hpet; put /sys/devices/system/clocksource/clocksource0/available_clocksource 'tsc hpet acpi_pm'; edit /proc/cpuinfo 's/ hypervisor//'", "says:hpet", severity="warning|advice"),
    Fault("checkpoints-on-vfat", "disk vfat 2G", "says:vfat|says:4.GiB", args="--checkpoints $W/m", severity="warning|error"),
    Fault("kernels-compiled-at-each-start", "cuda_torch; export CUDA_FORCE_PTX_JIT=1", "says:CUDA_FORCE_PTX_JIT", base="gpu", severity="error|warning|advice"),
    Fault("master-port-in-use", "$PY -I -c 'import socket, time; s = socket.create_server((str(), 29555)); time.sleep(120)' & sleep 1; export MASTER_ADDR=10.9.0.5 MASTER_PORT=29555", "says:29555", args="--nnodes 2", severity="error|warning"),
    Fault("tcp-memory-of-a-megabyte", "echo '64 128 256' | over /proc/sys/net/ipv4/tcp_mem", "says:tcp_mem", args="--nnodes 4", severity="warning|error|advice"),
    Fault("sleeps-late-by-seconds", "echo 1000000000 > /proc/self/timerslack_ns", "says:timer.?slack", severity="advice|warning"),
    Fault("stub-library-first", "cuda_torch; mkdir -p $W/cuda/lib64/stubs; cp $STUB/libnvidia-ml.so.1 $W/cuda/lib64/stubs/libcuda.so.1; export LD_LIBRARY_PATH=$W/cuda/lib64/stubs", "says:stubs", base="gpu", severity="error|warning"),
    Fault("healthy-no-file-locks", "ulimit -x 0; ulimit -q 0"),
    Fault("healthy-boot-words", "edit /proc/cmdline 's/^/quiet splash init_on_alloc=1 apparmor=1 security=apparmor console=ttyS0,115200 crashkernel=512M net.ifnames=0 /'"),
    Fault("uvm-node-of-an-earlier-boot", "cuda_torch; { cat /proc/devices; } | sed 's/^Block/195 nvidia\\n235 nvidia-uvm\\n\\nBlock/' | over /proc/devices", "says:nvidia-uvm", base="gpu", severity="error|warning"),
    Fault("master-port-below-1024", "export MASTER_ADDR=10.9.0.5 MASTER_PORT=80", "says:MASTER_PORT|says:port.80", args="--nnodes 2", user=65534, severity="error|warning"),
    Fault("healthy-files-for-the-owner-alone", "umask 077; mkdir -m 777 $W/ck", args="--checkpoints $W/ck", may="checkpoints-on-volatile-storage disk-space-low", user=65534),
)  # fmt: skip

SEALED = tuple(row.name for row in ROWS[2::3])
