"""Faults that the first nine lists lack, written down before ``check`` was run on any: firewalls and queues on the loopback, places where no socket can be
made, what is preloaded, ports that are not one's own, values that are read otherwise than they were meant; and oddities that break nothing.

Every fourth row from the third on (``SEALED``) was kept shut until what the others asked for was mended. The order is that of a hash of the names.
"""

from __future__ import annotations

from live_faults.row import Fault

ROWS = (
    Fault("healthy-unlimited-stack", "ulimit -s unlimited"),
    Fault("master-port-of-a-web-server", "export MASTER_ADDR=localhost MASTER_PORT=443", "says:443", user=1000, severity="error|warning"),
    Fault("healthy-unknown-locale", "export LC_ALL=xx_YY.UTF-8 LANGUAGE=xx"),
    Fault("healthy-preload-of-a-library", "export LD_PRELOAD=libm.so.6"),
    Fault("localhost-without-ipv4", "printf '::1 localhost\\n10.9.0.5 node5\\n' | over /etc/hosts; sysctl -qw net.ipv6.conf.all.disable_ipv6=1", "says:localhost", severity="error|warning"),
    Fault("buffers-of-one-page", "sysctl -qw net.ipv4.tcp_rmem='4096 4096 4096' net.ipv4.tcp_wmem='4096 4096 4096'", "says:tcp_rmem|says:tcp_wmem", args="--nnodes 2", severity="error|warning|advice"),
    Fault("preloaded-file-is-no-library", "echo 'Not Found' > $W/libjemalloc.so.2; export LD_PRELOAD=$W/libjemalloc.so.2", "says:libjemalloc", severity="error|warning|advice"),
    Fault("timeout-beyond-the-exponent", "cuda_torch; export NCCL_IB_TIMEOUT=60", "says:NCCL_IB_TIMEOUT", base="gpu", args="--nnodes 2", severity="error|warning|advice"),
    Fault("loopback-packets-dropped", "printf 'table inet filter {\\n chain input {\\n  type filter hook input priority 0; policy drop;\\n  ct state established accept\\n  tcp dport 22 accept\\n }\\n}\\n' | nft -f -", "says:127.0.0.1|loopback-unusable", severity="error|warning", left="check opens no connection (docs/security.md); smoke and preflight do"),
    Fault("temporary-files-on-a-stick", "disk vfat 64M; export TMPDIR=$W/m", "says:vfat", severity="error|warning", may="temporary-space-low mount-options-slow temporary-directory-not-writable", left="tried nowhere yet: this needs vfat and mkfs.vfat"),
    Fault("healthy-order-of-devices", "cuda_torch; export CUDA_DEVICE_ORDER=FASTEST_FIRST NCCL_IB_TIMEOUT=22 NCCL_BUFFSIZE=8388608 CUDA_DEVICE_MAX_CONNECTIONS=1", base="gpu", args="--nnodes 2"),
    Fault("order-of-devices-misspelt", "cuda_torch; export CUDA_DEVICE_ORDER=PCI_BUS", "says:CUDA_DEVICE_ORDER", base="gpu", severity="error|warning|advice"),
    Fault("healthy-tunables", "export GLIBC_TUNABLES=glibc.pthread.rseq=0 MALLOC_ARENA_MAX=4 PYTHONHASHSEED=0 PYTHONUNBUFFERED=1"),
    Fault("one-channel-alone", "cuda_torch; export NCCL_MAX_NCHANNELS=1", "says:NCCL_MAX_NCHANNELS", base="gpu", args="--nnodes 2", severity="warning|advice"),
    Fault("every-local-port-reserved", "sysctl -qw net.ipv4.ip_local_reserved_ports=32768-60999", "says:reserved", severity="error|warning", may="local-ports-few"),
    Fault("loopback-delayed", "tc qdisc add dev lo root netem delay 80ms", "says:netem|network-interface-shaped", severity="error|warning"),
    Fault("healthy-firewall-of-a-workstation", "printf 'table inet filter {\\n chain input {\\n  type filter hook input priority 0; policy drop;\\n  iif lo accept\\n  ct state established,related accept\\n }\\n}\\n' | nft -f -"),
    Fault("old-instructions-for-mkl", "export MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41", "says:MKL_ENABLE_INSTRUCTIONS|says:ONEDNN_MAX_CPU_ISA", severity="warning|advice"),
    Fault("buffer-with-a-unit", "cuda_torch; export NCCL_BUFFSIZE=8MB", "says:NCCL_BUFFSIZE", base="gpu", severity="error|warning|advice"),
    Fault("packages-for-root-alone", "lay $SITE; chmod 700 $SITE $SITE/torch", "says:torch|says:site-packages", user=1000, severity="error"),
    Fault("healthy-small-leftover-segments", "for i in 1 2 3; do head -c 100000 /dev/zero > /dev/shm/torch_tt_lab_$i; done; trap 'rm -f /dev/shm/torch_tt_lab_*' EXIT"),
    Fault("scheduler-gave-no-gpu", "cuda_torch; export CUDA_VISIBLE_DEVICES=NoDevFiles", "says:CUDA_VISIBLE_DEVICES", base="gpu", severity="error|warning"),
    Fault("segments-of-dead-jobs", "mount -t tmpfs -o size=256m tmpfs /dev/shm; for i in 1 2 3; do head -c 84000000 /dev/zero > /dev/shm/torch_99$i\\_1234_0; done", "says:/dev/shm", severity="error|warning", may="dev-shm-small dev-shm-too-small"),
    Fault("hash-seed-is-a-word", "export PYTHONHASHSEED=fixed", "says:PYTHONHASHSEED", severity="error|warning"),
    Fault("home-that-is-nowhere", "export HOME=/nonexistent", "says:/nonexistent", user=65534, severity="error|warning|advice", mistaken="nothing of torch for CPUs writes there: Triton's cache does, of which compile-cache-not-writable tells where there is a GPU"),
    Fault("healthy-hosts-of-debian", "printf '127.0.0.1 localhost\\n127.0.1.1 node5.lab node5\\n::1 localhost ip6-localhost\\n' | over /etc/hosts"),
)  # fmt: skip

SEALED = tuple(row.name for row in ROWS[2::4])
