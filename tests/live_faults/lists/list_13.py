"""Faults that the first twelve lists lack, written down before ``check`` was run on any: what people report of variables that an image, another cluster, a
pod or a job inside a job left behind, of libraries and caches of others, and of data that is not what it seems; and oddities that break nothing.

Every third row from the second on (``SEALED``) was kept shut until what the others asked for was mended. The order is that of a hash of the names.
"""

from __future__ import annotations

from live_faults.row import Fault

ROWS = (
    Fault("architectures-of-older-cards", "cuda_torch; export TORCH_CUDA_ARCH_LIST='7.0;7.5'", "says:TORCH_CUDA_ARCH_LIST", base="gpu", severity="warning|advice", left="it concerns only what is built here later, which no fact tells"),
    Fault("healthy-second-openmp-allowed", "export KMP_DUPLICATE_LIB_OK=TRUE MKL_THREADING_LAYER=GNU"),
    Fault("healthy-architectures-and-ptx", "cuda_torch; export TORCH_CUDA_ARCH_LIST='8.0;9.0+PTX'", base="gpu"),
    Fault("host-id-fixed-in-the-image", "cuda_torch; export NCCL_HOSTID=builder", "says:NCCL_HOSTID", base="gpu", args="--nnodes 2", severity="warning|advice"),  # NVIDIA/nccl#879
    Fault("older-numpy-on-the-path", "mkdir -p $W/s/numpy $W/s/numpy-1.19.5.dist-info; echo '__version__ = \"1.19.5\"' > $W/s/numpy/__init__.py; printf 'Metadata-Version: 2.1\\nName: numpy\\nVersion: 1.19.5\\n' > $W/s/numpy-1.19.5.dist-info/METADATA; export PYTHONPATH=$W/s", "says:numpy", severity="error|warning"),
    Fault("flight-records-written-nowhere", "cuda_torch; export TORCH_NCCL_TRACE_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1 TORCH_NCCL_DEBUG_INFO_TEMP_FILE=/scratch/job/nccl_trace_", "says:TORCH_NCCL_DEBUG_INFO_TEMP_FILE", base="gpu", severity="warning|advice"),
    Fault("older-cudnn-first", "cuda_torch; mkdir $W/cudnn; cp $STUB/libnvidia-ml.so.1 $W/cudnn/libcudnn.so.8.9.7; ln -s libcudnn.so.8.9.7 $W/cudnn/libcudnn.so.9; export LD_LIBRARY_PATH=$W/cudnn", "says:libcudnn", base="gpu", severity="error|warning", mistaken="this environment has no cuDNN that torch brought, so there is none that another could hide; where there is, cudnn-shadowed-by-ld-library-path tells"),  # pytorch/pytorch#104591
    Fault("service-links-of-kubernetes", "export KUBERNETES_SERVICE_HOST=10.96.0.1 MASTER_SERVICE_HOST=10.96.7.1 MASTER_PORT=tcp://10.96.7.1:29500", "variable-refused", severity="error"),  # a Service named master
    Fault("data-is-pointers-of-git-lfs", "put $W/data/model.safetensors 'version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 4976698672'; chmod -R a+rX $W/data", "says:[Ll][Ff][Ss]", args="--data $W/data", severity="error|warning|advice", left="what data holds is not read, only its names and rights"),  # safetensors: HeaderTooLarge
    Fault("gpus-parted-by-blanks", "export CUDA_VISIBLE_DEVICES='0 1'", "says:CUDA_VISIBLE_DEVICES", base="gpu", args="--nproc-per-node 2", severity="error|warning"),
    Fault("healthy-patient-heartbeat", "cuda_torch; export TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC=1800 TORCH_NCCL_ENABLE_MONITORING=1 TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC=60000", base="gpu"),
    Fault("torchrun-settings-in-the-shell", "export PET_NNODES=4 PET_NODE_RANK=2 PET_MASTER_ADDR=10.9.0.77", "says:PET_N", severity="warning|advice"),
    Fault("one-log-of-nccl-for-all-ranks", "cuda_torch; export NCCL_DEBUG=INFO NCCL_DEBUG_FILE=$W/nccl.log", "says:NCCL_DEBUG_FILE", base="gpu", args="--nproc-per-node 2", severity="warning|advice"),
    Fault("network-plug-in-of-another-cloud", "cuda_torch; export NCCL_NET='AWS Libfabric'", "says:NCCL_NET", base="gpu", args="--nnodes 2", severity="error|warning", left="whether a plug-in of this name is where NCCL looks for it is not looked for: which name a library has, it says itself"),  # NVIDIA/nccl#676
    Fault("healthy-variables-of-mpi", "export UCX_TLS=tcp,self UCX_NET_DEVICES=eth0 OMPI_MCA_btl=tcp,self OMPI_MCA_btl_tcp_if_include=eth0 HYDRA_IFACE=eth0"),
    Fault("data-behind-a-closed-parent", "mkdir -p $W/p/data; echo x > $W/p/data/a; chmod 700 $W/p", "data-path-unreadable", args="--data $W/p/data", user=1000, severity="error"),
    Fault("healthy-ccache-by-its-links", "mkdir $W/cc; ln -s $(command -v gcc) $W/cc/gcc; ln -s $(command -v gcc) $W/cc/g++; export PATH=$W/cc:$PATH CC=gcc CXX=g++ CCACHE_DIR=$W/k"),
    Fault("cache-home-of-another", "mkdir -m 700 $W/cache; export XDG_CACHE_HOME=$W/cache", "says:XDG_CACHE_HOME", user=1000, severity="warning|advice"),
    Fault("healthy-compilers-of-conda", "mkdir -p $W/c/bin; ln -s $(command -v gcc) $W/c/bin/x86_64-conda-linux-gnu-cc; ln -s $(command -v gcc) $W/c/bin/x86_64-conda-linux-gnu-c++; export CONDA_PREFIX=$W/c PATH=$W/c/bin:$PATH CC=x86_64-conda-linux-gnu-cc CXX=x86_64-conda-linux-gnu-c++", base="gpu"),
    Fault("healthy-pod-of-a-training-job", "export KUBERNETES_SERVICE_HOST=10.96.0.1 PET_NNODES=2 PET_NPROC_PER_NODE=auto PET_NODE_RANK=0 MASTER_ADDR=node5 MASTER_PORT=23456 RANK=0 WORLD_SIZE=2", args="--nnodes 2"),
    Fault("offline-with-an-empty-cache", "export HF_HUB_OFFLINE=1 HF_HOME=$W/hub", "says:HF_HUB_OFFLINE", severity="warning|advice", mistaken="sites set it for all jobs, and models that are named by a path need no cache"),
    Fault("two-memory-requests-of-slurm", "export SLURM_JOB_ID=7 SLURM_MEM_PER_NODE=65536 SLURM_MEM_PER_CPU=4096", "says:SLURM_MEM", severity="error|warning|advice"),
    Fault("healthy-logs-of-each-rank", "cuda_torch; mkdir -m 777 $W/l; export NCCL_DEBUG=WARN NCCL_DEBUG_FILE=$W/l/nccl.%h.%p TORCH_NCCL_DEBUG_INFO_TEMP_FILE=$W/l/trace_", base="gpu", args="--nproc-per-node 2"),
    Fault("kernels-kept-nowhere", "export CUDA_CACHE_PATH=/scratch/job/nv", "says:CUDA_CACHE_PATH", base="gpu", severity="warning|advice", left="whether the driver makes the directory is not documented, and could not be tried without a GPU"),
)  # fmt: skip

SEALED = tuple(row.name for row in ROWS[1::3])
