"""Faults of places that the first six lists lack, written down before ``check`` was run on any: what a session hands down (signals, filters, classes), the loader's own files, the interpreter's switches, the shape of a link.

Every third row from the third on (``SEALED``) was kept shut until what the others asked for was mended. The order is that of a hash of the names.
"""

from __future__ import annotations

from live_faults.row import Fault

_LOG = "printf '6,1,100000,-;Linux version 6.8.0-45-generic\\n{}' | over /dev/kmsg"
HANDED_DOWN = "printf '%s\\n' {} > $W/run.py; RUN=\"$PY -I $W/run.py\""
STARTED = "'import os, sys' 'os.execvp(sys.argv[1], sys.argv[1:])'"
_NO_HUGE_PAGES = HANDED_DOWN.format(f"'import ctypes' 'ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)' {STARTED}")
_NO_CLONE3 = HANDED_DOWN.format(
    "'import ctypes, struct' 'code = [(0x20, 0, 0, 0), (0x15, 0, 1, 435), (6, 0, 0, 0x50001), (6, 0, 0, 0x7fff0000)]' "
    '\'held = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *one) for one in code))\' '
    "'program = ctypes.create_string_buffer(struct.pack(\"HxxxxxxQ\", 4, ctypes.addressof(held)))' "
    f"'libc = ctypes.CDLL(None)' 'libc.prctl(38, 1, 0, 0, 0)' 'assert libc.prctl(22, 2, program, 0, 0) == 0' {STARTED}"
)
_LAY_ETC = "lay /etc; printf '127.0.0.1 localhost\\n10.9.0.5 node5\\n' > /etc/hosts"

ROWS = (
    Fault("a-network-that-is-not-there", "cuda_torch; export NCCL_NET=IB", "says:NCCL_NET", base="gpu", args="--nnodes 2", severity="error|warning"),
    Fault("mkl-held-to-sse", "export MKL_ENABLE_INSTRUCTIONS=SSE4_2", "says:MKL_ENABLE_INSTRUCTIONS", severity="advice|warning"),
    Fault("master-port-99999", "export MASTER_ADDR=10.9.0.5 MASTER_PORT=99999", "says:MASTER_PORT", args="--nnodes 2", severity="error|warning"),
    Fault("topology-file-gone", "cuda_torch; export NCCL_TOPO_FILE=/opt/nope/topo.xml", "says:NCCL_TOPO_FILE", base="gpu", args="--nproc-per-node 2", may="cpu-oversubscribed", severity="warning|advice"),
    Fault("all-data-journalled", "disk ext4 20G data=journal", "mount-options-slow|says:data=journal", args="--checkpoints $W/m", severity="advice|warning"),
    Fault("preload-of-the-system-gone", f"{_LAY_ETC}; echo /usr/lib/libnope.so > /etc/ld.so.preload", "says:ld.so.preload", severity="warning|advice"),
    Fault("healthy-venv-over-conda", "mkdir -p $W/conda/conda-meta $W/conda/bin $W/conda/lib; export CONDA_PREFIX=$W/conda CONDA_DEFAULT_ENV=base CONDA_SHLVL=1 VIRTUAL_ENV=$(dirname $(dirname $PY)) PATH=$(dirname $PY):$W/conda/bin:$PATH"),
    Fault("memmap-takes-8g", "edit /proc/cmdline 's/^/memmap=8G$4G /'", "says:memmap", severity="warning|advice"),
    Fault("pyvenv-cfg-gone", "d=$(dirname $(dirname $PY)); lay $d; rm $d/pyvenv.cfg", "says:pyvenv|says:torch.*not|says:no.torch", severity="error|warning"),
    Fault("healthy-fixed-addresses", "RUN='setarch -R'"),
    Fault("windows-of-64k", "sysctl -qw net.ipv4.tcp_window_scaling=0", "says:window_scaling", args="--nnodes 4", severity="warning|error"),
    Fault("certificates-gone", "export REQUESTS_CA_BUNDLE=/opt/nope/ca.pem SSL_CERT_FILE=/opt/nope/ca.pem", "says:REQUESTS_CA_BUNDLE|says:SSL_CERT_FILE", severity="warning|advice"),
    Fault("thread-limit-1", "export OMP_THREAD_LIMIT=1", "says:OMP_THREAD_LIMIT", severity="advice|warning"),
    Fault("turbo-off", "lay /sys; put /sys/devices/system/cpu/intel_pstate/no_turbo 1; put /sys/devices/system/cpu/intel_pstate/status active; edit /proc/cpuinfo 's/ hypervisor//'", "says:turbo|says:boost", severity="advice|warning"),
    Fault("loader-tells-all", "export LD_DEBUG=libs", "says:LD_DEBUG", severity="warning|advice"),
    Fault("shaped-to-1-mbit", "tc qdisc add dev eth0 root tbf rate 1mbit burst 32kbit latency 400ms", "says:tbf|says:qdisc|says:shap|says:1.?[mM]bit", args="--nnodes 2", severity="warning|error|advice"),
    Fault("files-without-any-mode", "umask 777; mkdir -m 777 $W/ck", "says:umask", args="--checkpoints $W/ck", may="checkpoints-on-volatile-storage disk-space-low", user=65534, severity="warning|error"),
    Fault("warnings-are-errors", "export PYTHONWARNINGS=error", "says:PYTHONWARNINGS", severity="warning|error", left="torch 2.13 imports and trains so; only what warns ends"),
    Fault("terminate-signal-blocked", "RUN='env --block-signal=TERM'", "says:SIGTERM", severity="warning|advice"),
    Fault("healthy-as-docker-does-it", "mount --bind /proc/sys /proc/sys; mount -o remount,ro,bind /proc/sys; mount -t tmpfs -o ro,size=0 tmpfs /sys/firmware; mount -t tmpfs -o ro tmpfs /proc/acpi; lay /; touch /.dockerenv"),
    Fault("threads-refused-by-a-filter", _NO_CLONE3, "says:thread|says:seccomp|refused:thread", severity="error|warning"),
    Fault("flash-attn-for-another-torch", "cuda_torch; d=$SITE/flash_attn-2.7.4.post1.dist-info; mkdir $d $SITE/flash_attn; printf 'Metadata-Version: 2.1\\nName: flash-attn\\nVersion: 2.7.4.post1+cu12torch2.5cxx11abiFALSE\\nRequires-Dist: torch\\nRequires-Dist: einops\\n' > $d/METADATA; echo pip > $d/INSTALLER", "says:flash", base="gpu", severity="warning|error", mistaken="its wheels are renamed after they are built: their metadata does not name torch's release"),
    Fault("pth-of-a-module-gone", "lay $SITE; echo 'import __editable___mylib_finder; __editable___mylib_finder.install()' > $SITE/__editable__.mylib.pth", "says:__editable__|says:\\.pth", severity="advice|warning"),
    Fault("hosts-file-closed", "chmod 600 /etc/hosts; : | over /etc/resolv.conf", "hostname-unresolvable|says:/etc/hosts", args="--nnodes 2", user=65534, severity="warning|error"),
    Fault("no-huge-pages-for-the-session", _NO_HUGE_PAGES, "says:THP|says:huge.page", severity="advice"),
    Fault("io-of-the-idle-class", "RUN='ionice -c 3'", "says:ionice|says:I/O.class|says:idle", args="--data /usr", severity="warning|advice", left="no file of /proc tells the class, and only BFQ and mq-deadline heed it"),
    Fault("names-never-given-back", "echo 0 | over /proc/sys/vm/vfs_cache_pressure", "says:vfs_cache_pressure", severity="warning|advice", left="no rule on vm.vfs_cache_pressure, which is seldom 0"),
    Fault("offloads-off", "ethtool -K eth0 tso off gso off gro off", "says:offload|says:[tg]so|says:gro", args="--nnodes 2", severity="advice|warning", left="the offloads are told by ioctls alone, one for each interface and feature"),
    Fault("illegal-instruction-in-the-log", _LOG.format("6,900,5000000000,-;traps: python3[4711] trap invalid opcode ip:7f3b2c1d4e10 sp:7ffd3a2b1c00 error:0 in libtorch_cpu.so[7f3b2a000000+10c00000]\\n"), "says:invalid.opcode|says:libtorch_cpu", severity="warning|error", left="said as advice: the log tells of the past, and the program is named"),
    Fault("child-signals-ignored", "RUN='env --ignore-signal=CHLD'", "says:SIGCHLD", severity="warning|error"),
    Fault("path-of-another-python", "p=$W/lib/python3.8/site-packages; mkdir -p $p/numpy/core; : > $p/numpy/__init__.py; : > $p/numpy/core/_multiarray_umath.cpython-38-x86_64-linux-gnu.so; export PYTHONPATH=$p", "says:python3\\.8|says:cpython-38", severity="warning|error"),
    Fault("network-card-stops-in-the-log", _LOG.format("4,900,5000000000,-;NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue 3 timed out 5010 ms\\n3,901,5000000100,-;mlx5_core 0000:1b:00.0 eth0: TX timeout detected\\n"), "says:eth0|says:NETDEV|says:transmit", severity="warning|error", left="one time-out a day is below the three that network-link-flapping asks for"),
    Fault("dma-fault-in-the-log", _LOG.format("3,900,5000000000,-;DMAR: DRHD: handling fault status reg 2\\n3,901,5000000100,-;DMAR: [DMA Read NO_PASID] Request device [19:00.0] fault addr 0xff8a0000 [fault reason 0x06] PTE Read access is not set\\n"), "says:DMAR|says:19:00", base="gpu", severity="warning|error"),
    Fault("ranks-left-in-the-shell", "export RANK=3 WORLD_SIZE=8 LOCAL_RANK=3 MASTER_ADDR=10.9.0.77 MASTER_PORT=29500", "says:WORLD_SIZE|says:RANK", severity="advice|warning"),
    Fault("developer-mode", "export PYTHONDEVMODE=1", "says:PYTHONDEVMODE", severity="advice|warning"),
    Fault("library-cut-and-not-imported", "lay $SITE; truncate -s 1M $SITE/torch/lib/libtorch_cpu.so", "says:libtorch_cpu", severity="error", left="the sizes of torch's own libraries are not compared with its RECORD, which takes 10 ms to read; --live imports them"),
    Fault("gloo-encrypted-without-keys", "export GLOO_DEVICE_TRANSPORT=TCP_TLS", "says:GLOO_DEVICE_TRANSPORT", args="--nnodes 2", severity="error|warning"),
    Fault("ext4-without-a-journal", "disk ext4 20G defaults '-O ^has_journal'", "says:journal", args="--checkpoints $W/m", severity="advice|warning", left="the mount table does not tell it"),
    Fault("healthy-proxy", "export http_proxy=http://10.9.0.99:3128 https_proxy=http://10.9.0.99:3128 HTTPS_PROXY=http://10.9.0.99:3128 no_proxy=localhost,127.0.0.1,10.0.0.0/8", args="--nnodes 2"),
    Fault("compiler-named-is-gone", "cuda_torch; export CC=/opt/nope/gcc CXX=/opt/nope/g++", "says:/opt/nope", base="gpu", severity="warning|error|advice"),
)  # fmt: skip

SEALED = tuple(row.name for row in ROWS[2::3])
