"""Faults that the first ten lists lack, written down before ``check`` was run on any: two cards of one network, what a hardened unit forbids,
variables of NCCL and torch that a launcher or an earlier debugging left, an interpreter built without its libraries, libraries older than what stands
beside them, a card that the next boot gives away; and oddities that break nothing.

Every fourth row from the second on (``SEALED``) was kept shut until what the others asked for was mended. The order is that of a hash of the names.
"""

from __future__ import annotations

from live_faults.lists.list_07 import HANDED_DOWN, STARTED
from live_faults.row import Fault

_INFINIBAND = (
    "cuda_torch; i=$D0/0000:1b:00.0; port $i 'DRIVER=mlx5_core\nPCI_CLASS=20700\nPCI_ID=15B3:1021\nPCI_SLOT_NAME=0000:1b:00.0' 0x020700 0x15b3:0x1021; "
    "b=$i/infiniband/mlx5_0; p=$b/ports/1; put $b/fw_ver 28.43.1014; put $b/hca_type MT4129; put $b/node_type '1: CA'; put $p/state '4: ACTIVE'; "
    "put $p/phys_state '5: LinkUp'; put $p/link_layer InfiniBand; put $p/rate '400 Gb/sec (4X NDR)'; put $p/lid 0x5; put $p/sm_lid 0x1; put $p/pkeys/0 0xffff; "
    "put $p/gids/0 fe80:0000:0000:0000:0ac0:ebff:fe12:3456; mkdir -p /sys/class/infiniband $i/infiniband_verbs/uverbs0 /sys/class/infiniband_verbs /dev/infiniband; "
    "put $i/infiniband_verbs/uverbs0/ibdev mlx5_0; put $i/infiniband_verbs/uverbs0/dev 231:192; ln -s ../../devices/${b#/sys/devices/} /sys/class/infiniband/mlx5_0; "
    "ln -s ../../devices/${i#/sys/devices/}/infiniband_verbs/uverbs0 /sys/class/infiniband_verbs/uverbs0; ln -s ../../../0000:1b:00.0 $b/device; "
    "mknod -m 666 /dev/infiniband/uverbs0 c 231 192; "
)
_NO_NETLINK = HANDED_DOWN.format(
    "'import ctypes, struct' 'code = [(0x20, 0, 0, 0), (0x15, 0, 3, 41), (0x20, 0, 0, 16), (0x15, 0, 1, 16), (6, 0, 0, 0x50061), (6, 0, 0, 0x7fff0000)]' "
    '\'held = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))\' '
    "'program = ctypes.create_string_buffer(struct.pack(\"HxxxxxxQ\", 6, ctypes.addressof(held)))' "
    f"'libc = ctypes.CDLL(None)' 'libc.prctl(38, 1, 0, 0, 0)' 'assert libc.prctl(22, 2, program, 0, 0) == 0' {STARTED}"
)
_NO_NEW_CODE = HANDED_DOWN.format(
    f"'import ctypes' 'libc = ctypes.CDLL(None)' 'assert libc.prctl(65, 1, 0, 0, 0) == 0' {STARTED}"
)

ROWS = (
    Fault("compile-debug-left", "export TORCH_COMPILE_DEBUG=1 TORCH_LOGS=+dynamo,+inductor,output_code", "says:TORCH_COMPILE_DEBUG|says:TORCH_LOGS", severity="warning|advice"),
    Fault("two-cards-in-one-subnet", "wire eth1 10.9.0.6/24", "says:same.subnet|says:same.network|says:10.9.0.0/24|arp-answers-on-any-interface", args="--nnodes 2", severity="error|warning|advice"),
    Fault("backend-extension-that-is-gone", "lay $SITE; d=$SITE/torch_accel-1.0.dist-info; mkdir $d; printf 'Metadata-Version: 2.1\\nName: torch-accel\\nVersion: 1.0\\n' > $d/METADATA; printf '[torch.backends]\\naccel = torch_accel:_autoload\\n' > $d/entry_points.txt; echo pip > $d/INSTALLER", "says:torch.accel|says:torch.backends", severity="error", may="torch-import-fails"),
    Fault("healthy-loader-path-with-a-hole", "export LD_LIBRARY_PATH=:/usr/local/lib: TZ=Mars/Phobos LD_BIND_NOW=1"),
    Fault("nccl-comm-id-left", "cuda_torch; export NCCL_COMM_ID=10.9.0.5:23456", "says:NCCL_COMM_ID", base="gpu", args="--nnodes 2", severity="error|warning|advice"),
    Fault("healthy-variables-of-recipes", "cuda_torch; export CUBLAS_WORKSPACE_CONFIG=:4096:8 TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800 NCCL_SOCKET_FAMILY=AF_INET OMP_WAIT_POLICY=PASSIVE NVIDIA_DRIVER_CAPABILITIES=compute,utility KMP_DUPLICATE_LIB_OK=TRUE TORCH_LOGS=recompiles,graph_breaks NCCL_DEBUG_FILE=/tmp/nccl.%h.%p", base="gpu", args="--nnodes 2"),
    Fault("card-given-to-guests-by-the-next-boot", "lay /etc; printf '127.0.0.1 localhost\\n10.9.0.5 node5\\n' > /etc/hosts; printf 'options vfio-pci ids=10de:2330\\nsoftdep nvidia pre: vfio-pci\\nblacklist nvidia\\n' > /etc/modprobe.d/vfio.conf", "says:vfio", base="gpu", severity="warning|advice", left="vfio-pci takes the card only where something loads it before nvidia, which files of modprobe.d alone do not tell"),
    Fault("netlink-refused-by-a-filter", _NO_NETLINK, "says:netlink|says:seccomp|says:interface", severity="error|warning", args="--nnodes 2"),
    Fault("limited-member-of-the-partition", f"{_INFINIBAND} put $p/pkeys/0 0x7fff", "says:0x7fff|says:limited", base="gpu", args="--nnodes 2", severity="error|warning", may="rdma-driver-not-loaded memlock-limit-too-low"),
    Fault("addresses-of-a-family-nobody-has", "cuda_torch; sysctl -qw net.ipv6.conf.all.disable_ipv6=1; export NCCL_SOCKET_FAMILY=AF_INET6", "says:NCCL_SOCKET_FAMILY", base="gpu", args="--nnodes 2", severity="error|warning"),
    Fault("toolkit-of-another-cuda", "cuda_torch; mkdir -p $W/cuda-11.8/bin; printf '#!/bin/sh\\necho \"nvcc: NVIDIA (R) Cuda compiler driver\"\\necho \"Cuda compilation tools, release 11.8, V11.8.89\"\\n' > $W/cuda-11.8/bin/nvcc; chmod 755 $W/cuda-11.8/bin/nvcc; put $W/cuda-11.8/version.json '{\"cuda\": {\"name\": \"CUDA SDK\", \"version\": \"11.8.20220929\"}}'; export CUDA_HOME=$W/cuda-11.8 PATH=$W/cuda-11.8/bin:$PATH", "says:11.8", base="gpu", severity="warning|advice"),
    Fault("verbs-node-for-root", f"{_INFINIBAND} chmod 600 /dev/infiniband/uverbs0", "says:uverbs0", base="gpu", args="--nnodes 2", user=1000, severity="error|warning", may="rdma-driver-not-loaded memlock-limit-too-low"),
    Fault("container-with-tools-alone", "cuda_torch; rm /usr/lib/x86_64-linux-gnu/libcuda.so*; lay /run; echo 'engine=\"podman-5.2.2\"' > /run/.containerenv; export container=podman NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=utility", "says:NVIDIA_DRIVER_CAPABILITIES", base="gpu", severity="error|warning", may="wheel-libs-not-found"),
    Fault("mtu-of-one-of-two-cards", "cuda_torch; wire eth1 10.8.0.5/24; ip link set eth1 mtu 9000; ip link set peth1 mtu 9000; export NCCL_SOCKET_IFNAME=eth0,eth1", "says:9000|says:1500", base="gpu", args="--nnodes 2", severity="warning|advice", mistaken="each of two networks may have packets of its own size"),
    Fault("older-libstdc++-first", "mkdir $W/lib; printf 'GLIBCXX_3.4 { global: x; local: *; };\\nGLIBCXX_3.4.19 { global: y; } GLIBCXX_3.4;\\n' > $W/map; echo 'int x, y;' | cc -shared -fPIC -x c - -Wl,-soname,libstdc++.so.6 -Wl,--version-script,$W/map -o $W/lib/libstdc++.so.6; export LD_LIBRARY_PATH=$W/lib", "says:GLIBCXX|says:libstdc", severity="error|warning", may="torch-import-fails"),
    Fault("files-of-the-data-for-root-alone", "mkdir $W/data; for i in 0 1 2 3; do head -c 4096 /dev/urandom > $W/data/shard-$i.tar; done; chmod 600 $W/data/*; chmod 755 $W/data", "says:shard-|data-path-unreadable", args="--data $W/data", user=1000, severity="error|warning"),
    Fault("older-libcuda-first", "cp \"$STUB/libnvidia-ml.so.1\" /usr/lib/x86_64-linux-gnu/libcuda.so.535.183.01; ln -sfn libcuda.so.535.183.01 /usr/lib/x86_64-linux-gnu/libcuda.so.1", "says:535", base="gpu", severity="error|warning", may="driver-installed-twice"),
    Fault("watched-every-five-seconds", "cuda_torch; export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=5", "says:HEARTBEAT", base="gpu", args="--nnodes 2", severity="error|warning", left="PyTorch found two minutes too short (pull requests 116267 and 133028); nobody reports a smaller value than 60, so no rule was written for it"),
    Fault("healthy-sockets-of-one-family", "sysctl -qw net.ipv6.bindv6only=1 net.ipv4.tcp_mtu_probing=1 net.ipv4.tcp_ecn=1 net.ipv4.tcp_fin_timeout=15 net.ipv4.tcp_tw_reuse=1", args="--nnodes 2"),
    Fault("memory-may-not-be-executed", _NO_NEW_CODE, "says:execut", severity="error|warning"),
    Fault("healthy-unit-of-systemd", "unset HOME; export INVOCATION_ID=0123456789abcdef0123456789abcdef JOURNAL_STREAM=8:12345 SYSTEMD_EXEC_PID=$$ LANG=; cd /; mount -t tmpfs -o mode=1777,nosuid,nodev tmpfs /var/tmp"),
    Fault("interpreter-without-ctypes", "v=$(dirname $(dirname $PY)); b=$(dirname $(dirname $(readlink -f $PY))); mkdir $W/py $W/up $W/wk; mount -t overlay overlay -o lowerdir=$b,upperdir=$W/up,workdir=$W/wk $W/py; rm $W/py/lib/python3.*/lib-dynload/_ctypes.*; edit $v/pyvenv.cfg \"s#^home = .*#home = $W/py/bin#\"", "says:_ctypes", severity="error", may="torch-import-fails"),
)  # fmt: skip

SEALED = tuple(row.name for row in ROWS[1::4])
