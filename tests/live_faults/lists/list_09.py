"""Faults that the first eight lists lack, written down before ``check`` was run on any: where the script starts and what lies beside it, the master's address and the way to it, caches and homes of others, what was left of a copied environment.

Every third row from the third on (``SEALED``) was kept shut until what the others asked for was mended. The order is that of a hash of the names.
"""

from __future__ import annotations

from live_faults.row import Fault

ROWS = (
    Fault("errors-of-collectives-ignored", "cuda_torch; export TORCH_NCCL_ASYNC_ERROR_HANDLING=0", "says:TORCH_NCCL_ASYNC_ERROR_HANDLING", base="gpu", args="--nnodes 2", severity="warning|advice"),
    Fault("power-brake-pulled", "stub 'nvmlDeviceGetCurrentClocksEventReasons@1 = 0x88'", "says:brake", base="gpu", severity="error|warning"),
    Fault("healthy-ordinary-project", "mkdir -p data models utils test datasets torchtune; touch train.py model.py utils/__init__.py models/__init__.py test/__init__.py data/__init__.py config.py test.py setup.py main.py logging_utils.py types.yaml run.sh"),
    Fault("each-page-checked-since-boot", "edit /proc/cmdline 's/^/debug_pagealloc=on page_owner=on slub_debug=FZPU /'", "says:debug_pagealloc", severity="advice|warning"),
    Fault("blocks-split-below-the-least", "cuda_torch; export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:8", "says:max_split_size_mb", base="gpu", severity="error|warning"),
    Fault("master-has-no-address", ": | over /etc/resolv.conf; export MASTER_ADDR=gpu-node-17 MASTER_PORT=29500", "says:gpu-node-17", args="--nnodes 2", severity="error|warning"),
    Fault("inside-a-checkout-of-torch", "mkdir torch; echo 'from ._C import *' > torch/__init__.py; touch setup.py", "says:work/torch", severity="warning|error"),
    Fault("firewall-lets-in-ssh-alone", "printf 'table inet filter {\\n chain input {\\n  type filter hook input priority 0; policy drop;\\n  iif lo accept\\n  ct state established,related accept\\n  tcp dport 22 accept\\n }\\n}\\n' | nft -f -", "says:firewall|says:nftables|says:policy.drop", args="--nnodes 2 --live", severity="error|warning|advice", left="no rule reads the firewall's rules: whether a policy of drop shuts out the nodes of a job depends on chains that it jumps to; preflight connects"),
    Fault("no-route-to-the-master", "ip route del default; export MASTER_ADDR=10.77.1.4 MASTER_PORT=29500", "says:10.77.1.4", args="--nnodes 2", severity="error|warning"),
    Fault("home-on-a-silent-server", "mkdir $W/fuse; $FUSE $W/fuse & sleep 1; export HOME=$W/fuse", "says:/fuse", severity="error|warning"),
    Fault("caret-within-the-list", "cuda_torch; export NCCL_SOCKET_IFNAME=eth0,^docker0", "says:NCCL_SOCKET_IFNAME", base="gpu", args="--nnodes 2", severity="error|warning|advice"),
    Fault("master-behind-the-containers-bridge", "ip link add docker0 type bridge; ip addr add 172.17.0.1/16 dev docker0; ip link set docker0 up; export MASTER_ADDR=172.17.5.9 MASTER_PORT=29500", "says:docker0", args="--nnodes 2", severity="error|warning"),
    Fault("jobs-end-at-logout", "lay /etc; printf '127.0.0.1 localhost\\n10.9.0.5 node5\\n' > /etc/hosts; mkdir -p /etc/systemd/logind.conf.d; printf '[Login]\\nKillUserProcesses=yes\\n' > /etc/systemd/logind.conf.d/50-site.conf", "says:KillUserProcesses", user=1000, severity="advice|warning"),
    Fault("healthy-two-interfaces-for-gloo", "wire eth1 10.8.0.5/24; export GLOO_SOCKET_IFNAME=eth0,eth1", args="--nnodes 2"),
    Fault("random-py-beside-the-script", "echo 'numbers = [4]' > random.py; echo 'import torch' > train.py", "says:random.py", severity="warning|error"),
    Fault("copy-of-torch-not-complete", "lay $SITE; rm -r $SITE/torch/distributed $SITE/torch/optim", "says:torch/distributed|says:torch.distributed|says:torch/optim|says:torch.optim", severity="error|warning"),
    Fault("healthy-variables-of-a-careful-operator", "cuda_torch; export TORCH_SHOW_CPP_STACKTRACES=1 TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_ASYNC_ERROR_HANDLING=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True,max_split_size_mb:128 NCCL_SOCKET_IFNAME=^docker,lo NCCL_DEBUG=WARN PYTHONFAULTHANDLER=1", base="gpu", args="--nnodes 2"),
    Fault("cable-pulled", "ip link set peth0 down", "says:eth0", args="--nnodes 2", severity="error|warning"),
    Fault("gid-of-an-empty-place", "cuda_torch; i=$D0/0000:1b:00.0; port $i \"DRIVER=mlx5_core\nPCI_CLASS=20000\nPCI_ID=15B3:1021\nPCI_SLOT_NAME=0000:1b:00.0\" 0x020000 0x15b3:0x1021; b=$i/infiniband/mlx5_0; put $b/fw_ver 28.39.1002; put $b/hca_type MT4129; p=$b/ports/1; put $p/state '4: ACTIVE'; put $p/phys_state '5: LinkUp'; put $p/link_layer Ethernet; put $p/rate '400 Gb/sec (4X NDR)'; put $p/gids/0 fe80:0000:0000:0000:0ac0:ebff:fe12:3456; put $p/gids/1 fe80:0000:0000:0000:0ac0:ebff:fe12:3456; put $p/gids/2 0000:0000:0000:0000:0000:ffff:0a09:0005; put $p/gids/3 0000:0000:0000:0000:0000:ffff:0a09:0005; put $p/gids/4 0000:0000:0000:0000:0000:0000:0000:0000; put $p/gid_attrs/types/0 'IB/RoCE v1'; put $p/gid_attrs/types/1 'RoCE v2'; put $p/gid_attrs/types/2 'IB/RoCE v1'; put $p/gid_attrs/types/3 'RoCE v2'; mkdir -p $i/net/eth0 /sys/class/infiniband; ln -s ../../devices/pci0000:17/0000:17:01.0/0000:1b:00.0/infiniband/mlx5_0 /sys/class/infiniband/mlx5_0; ln -s ../../.. $b/device; export NCCL_IB_GID_INDEX=7", "says:NCCL_IB_GID_INDEX|says:entry.7", may="rdma-driver-not-loaded", base="gpu", args="--nnodes 2", severity="error|warning"),
    Fault("four-ranks-promised-one-started", "export WORLD_SIZE=4 RANK=0 LOCAL_RANK=0 MASTER_ADDR=localhost MASTER_PORT=29500", "says:WORLD_SIZE", args="--nproc-per-node 1", severity="error|warning"),
    Fault("package-below-sympy-gone", "lay $SITE; rm -r $SITE/mpmath*", "says:mpmath", severity="error|warning"),
    Fault("healthy-master-is-a-neighbour", "printf '127.0.0.1 localhost\\n10.9.0.5 node5\\n10.9.0.77 node0 node0.cluster\\n' | over /etc/hosts; export MASTER_ADDR=node0 MASTER_PORT=29500", args="--nnodes 2"),
    Fault("port-written-behind-the-address", "export MASTER_ADDR=10.9.0.5:29500 MASTER_PORT=29500", "says:10.9.0.5.29500", args="--nnodes 2", severity="error|warning"),
    Fault("compile-cache-of-root-in-tmp", "mkdir -m 1777 $W/tmp; mkdir -m 700 $W/tmp/torchinductor_nobody; export TMPDIR=$W/tmp", "says:torchinductor_nobody", user=65534, severity="error|warning"),
)  # fmt: skip

SEALED = tuple(row.name for row in ROWS[2::3])
