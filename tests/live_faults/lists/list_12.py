"""Faults that the first eleven lists lack, written down before ``check`` was run on any: what a shell's start files and a wrapper leave for every program,
variables of compilers, Triton and MPI, the state of a group of processes, mounts that hide others, and settings of the kernel that few change; and oddities
that break nothing.

Every third row from the second on (``SEALED``) was kept shut until what the others asked for was mended. The order is that of a hash of the names.
"""

from __future__ import annotations

from live_faults.row import Fault

_ENTRY = (
    "lay $SITE; d=$SITE/torch_accel-1.0.dist-info; mkdir $d; printf 'Metadata-Version: 2.1\\nName: torch-accel\\nVersion: 1.0\\n' > $d/METADATA; "
    "printf '[torch.backends]\\naccel = torch_accel:_autoload\\n' > $d/entry_points.txt; echo pip > $d/INSTALLER; "
)

ROWS = (
    Fault("tmp-covered-by-a-file-system-without-mode", "mount -t tmpfs -o mode=755 tmpfs /var/tmp; export TMPDIR=/var/tmp", "temporary-directory-not-writable|temporary-directory-passed-over|says:/var/tmp", user=1000, severity="error|warning"),
    Fault("compiler-is-a-wrapper-that-is-gone", "export CC='ccache gcc' CXX='ccache g++'", "says:ccache", severity="error|warning"),
    Fault("healthy-host-name-is-an-address", "hostname 10.9.0.5; printf '127.0.0.1 localhost\\n' | over /etc/hosts", args="--nnodes 2"),
    Fault("semaphores-none", "sysctl -qw kernel.sem='10 100 10 1'", "says:kernel.sem|says:semaphore", severity="warning|advice", mistaken="nothing of torch, NCCL or Python asks for semaphores of System V: those of multiprocessing are files"),
    Fault("shm-segments-one", "sysctl -qw kernel.shmmni=1 kernel.shmall=16", "says:shmall|says:shmmni|says:kernel.shm", severity="warning|advice", mistaken="nothing of torch or NCCL uses shared memory of System V: theirs are files of /dev/shm"),
    Fault("healthy-two-default-routes", "wire eth1 10.8.0.5/24; ip route add default via 10.8.0.1 metric 50; export NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0", args="--nnodes 2"),
    Fault("backend-extension-without-its-function", _ENTRY + "mkdir $SITE/torch_accel; echo 'x = 1' > $SITE/torch_accel/__init__.py", "says:torch.accel|says:torch.backends", severity="error", may="torch-import-fails", left="what a module holds is known by importing it: check --live and smoke say it"),
    Fault("healthy-backend-extension", _ENTRY + "mkdir $SITE/torch_accel; echo 'def _autoload(): pass' > $SITE/torch_accel/__init__.py"),
    Fault("python-home-of-another", "mkdir -p $W/h/lib; export PYTHONHOME=$W/h", "says:PYTHONHOME", severity="error", may="interpreter-does-not-start torch-import-fails"),
    Fault("healthy-one-connection", "cuda_torch; export CUDA_DEVICE_MAX_CONNECTIONS=1 NCCL_NVLS_ENABLE=0 TORCH_NCCL_AVOID_RECORD_STREAMS=1 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", base="gpu"),
    Fault("healthy-locale-that-is-not-there", "export LC_ALL=xx_YY.UTF-8 LANGUAGE=de; ulimit -c unlimited; umask 0077"),
    Fault("link-local-address-alone", "ip addr flush dev eth0; ip addr add 169.254.7.5/16 dev eth0; printf '127.0.0.1 localhost\\n169.254.7.5 node5\\n' | over /etc/hosts", "says:169.254", args="--nnodes 2", severity="error|warning|advice", mistaken="two hosts on one cable have no other addresses, and train by them"),
    Fault("triton-backend-of-another-maker", "cuda_torch; mkdir $SITE/triton-3.7.1.dist-info; printf 'Metadata-Version: 2.1\\nName: triton\\nVersion: 3.7.1\\n' > $SITE/triton-3.7.1.dist-info/METADATA; export TRITON_DEFAULT_BACKEND=amd", "says:TRITON_DEFAULT_BACKEND", base="gpu", may="compile-cache-not-executable", severity="error|warning|advice"),
    Fault("healthy-data-behind-two-links", "mkdir $W/real; echo x > $W/real/a; ln -s $W/real $W/one; ln -s one $W/data", args="--data $W/data"),
    Fault("triton-interprets", "cuda_torch; export TRITON_INTERPRET=1", "says:TRITON_INTERPRET", base="gpu", severity="error|warning"),
    Fault("nccl-timeouts-zero", "cuda_torch; export NCCL_SOCKET_RETRY_CNT=0 NCCL_IB_TIMEOUT=0", "says:NCCL_IB_TIMEOUT", base="gpu", args="--nnodes 2", severity="error|warning", mistaken="the machine has no card of InfiniBand, and a socket is tried once in any case"),
    Fault("healthy-team-folder", "umask 0007; mkdir -m 2770 $W/ck; chgrp 1000 $W/ck", args="--checkpoints $W/ck", user=1000, may="checkpoints-on-volatile-storage"),
    Fault("cuda-cache-off", "cuda_torch; export CUDA_CACHE_DISABLE=1 CUDA_FORCE_PTX_JIT=1", "says:CUDA_FORCE_PTX_JIT|says:CUDA_CACHE_DISABLE", base="gpu", severity="error|warning"),
    Fault("inductor-workers-none", "export TORCHINDUCTOR_COMPILE_THREADS=0", "says:TORCHINDUCTOR_COMPILE_THREADS", severity="error|warning|advice", mistaken="none is one: torch compiles in its own process, as it does with 1"),
    Fault("inotify-instances-none", "sysctl -qw user.max_inotify_instances=0", "says:inotify", severity="warning|advice", left="could not be made here: a namespace may not set it"),
    Fault("healthy-backends-not-loaded", _ENTRY + "export TORCH_DEVICE_BACKEND_AUTOLOAD=0"),
    Fault("nccl-buffer-of-a-kilobyte", "cuda_torch; export NCCL_BUFFSIZE=1024 NCCL_MAX_NCHANNELS=1", "says:NCCL_BUFFSIZE|says:NCCL_MAX_NCHANNELS", base="gpu", severity="warning|advice"),
    Fault("proc-sys-is-covered", "mount -t tmpfs tmpfs /proc/sys", "unknown:swappiness-high|unknown:max-map-count-low|unknown:file-table-small"),
    Fault("data-is-a-broken-link", "ln -s /nowhere/imagenet $W/data", "data-path-unreadable", args="--data $W/data", severity="error"),
    Fault("python-isolated-by-a-wrapper", "export PYTHONPLATLIBDIR=lib64", "says:PYTHONPLATLIBDIR", severity="error|warning", may="torch-import-fails interpreter-does-not-start"),
    Fault("healthy-message-queues-small", "sysctl -qw kernel.msgmax=1024 fs.mqueue.msg_max=4"),
)  # fmt: skip

SEALED = tuple(row.name for row in ROWS[1::3])
