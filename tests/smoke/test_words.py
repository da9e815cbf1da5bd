"""Words of real programs, and the cause they stand for. The words are those of the sources that the table names."""

from __future__ import annotations

import pytest

from torchtune_sys.diagnosis.known_words import known
from torchtune_sys.knowledge import tables
from torchtune_sys.rules import CATALOGUE

WORDS = [
    ("RuntimeError: DataLoader worker (pid 4410) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.", "dataloader", "dev-shm-too-small"),
    ("OSError: [Errno 28] No space left on device", "dataloader", "dev-shm-too-small"),
    ("OSError: [Errno 28] No space left on device: '/ckpt/x'", "checkpoint", "disk-full-or-quota"),
    ("RuntimeError: [enforce fail at inline_container.cc:664] . unexpected pos 64 vs 0", "checkpoint", "disk-full-or-quota"),
    ("OSError: [Errno 122] Disk quota exceeded", "checkpoint", "disk-full-or-quota"),
    ("OSError: [Errno 27] File too large: '/ckpt/x'", "checkpoint", "file-size-limit"),
    ("RuntimeError: unable to resize file </torch_30080_3228023962_0> to the right size: File too large (27)", "dataloader", "file-size-limit"),
    ("ModuleNotFoundError: No module named 'torch'", "import", "torch-not-installed"),
    ("ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory", "import", "wheel-libs-not-found"),
    ("ImportError: libcudart.so.12: cannot open shared object file: No such file or directory\n/x/torch/__init__.py:405 in <module>: from torch._C import *", "import", "wheel-libs-not-found"),
    ("ImportError: /lib/x86_64-linux-gnu/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (required by libtorch.so)", "import", "libstdcxx-too-old"),
    ("ImportError: /lib64/libc.so.6: version `GLIBC_2.32' not found", "import", "glibc-too-old"),
    ("undefined symbol: __nvJitLinkComplete_12_4, version libnvJitLink.so.12", "import", "nvjitlink-shadowed-by-ld-library-path"),
    ("ImportError: libtorch_cuda.so: undefined symbol: ncclCommResume", "import", "mixed-nvidia-cuda-wheels"),
    ("RuntimeError: can't start new thread", "dataloader", "cgroup-pids-limit"),
    ("libgomp: Thread creation failed: Resource temporarily unavailable", "gemm", "cgroup-pids-limit"),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "device", "gpu-arch-not-in-wheel"),
    ("RuntimeError: The NVIDIA driver on your system is too old (found version 11040).", "device", "driver-too-old"),
    ("RuntimeError: Found no NVIDIA driver on your system.", "device", "no-nvidia-driver"),
    ("Error 802: system not yet initialized", "device", "fabric-manager-not-running"),
    ("CUDA error: all CUDA-capable devices are busy or unavailable", "device", "exclusive-compute-mode"),
    ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 256.00 MiB.", "device", "gpu-memory-in-use"),
    ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gemm", "gpu-ecc-uncorrectable"),
    ("ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 1b000", "rendezvous", "several-ranks-on-one-gpu"),
    ("Last error:\nMultiple Ranks are using the same GPU/Partition. Set NCCL_MULTI_", "rendezvous", "several-ranks-on-one-gpu"),
    ("Bootstrap : no socket interface found", "rendezvous", "nccl-wrong-interface"),
    ("[enforce fail at device.cc:117] rv != -1. Unable to find address for: eth7", "rendezvous", "gloo-wrong-interface"),
    ("socket.gaierror: [Errno -2] Name or service not known", "rendezvous", "hostname-unresolvable"),
    ("The server socket has failed to listen on any local network address. port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use", "rendezvous", "master-port-in-use"),
    ("torch._inductor.exc.InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx: (None, 'g++')", "compile", "build-tool-missing"),
    ("InductorError: FileNotFoundError: [Errno 2] No such file or directory: 'openssl'", "compile", "build-tool-missing"),
    ("torch._inductor.exc.TritonMissing: Cannot find a working triton installation. Either the package is not installed or it is too old.", "compile", "triton-missing"),
    ("BackendCompilerFailed: debug_wrapper raised ModuleNotFoundError: No module named 'numpy'", "compile", "numpy-missing"),
    ("RuntimeError: Numpy is not available", "checkpoint-sharded", "numpy-missing"),
    ("RuntimeError: Failed to find C compiler. Please specify via CC environment variable", "compile", "build-tool-missing"),
    ("main.c:3:10: fatal error: Python.h: No such file or directory", "compile", "python-headers-missing"),
    ("/usr/bin/ld: cannot find -lcuda: No such file or directory", "compile", "libcuda-not-linkable"),
    ("fatal error: stdio.h: No such file or directory", "compile", "compiler-headers-missing"),
    ("PermissionError: [Errno 13] Permission denied: '/cache/torchinductor'", "compile", "compile-cache-not-writable"),
    ("KeyError: 'getpwuid(): uid not found: 1234'", "compile", "container-uid-without-passwd"),
    ("ImportError: no PyTorch, but another module named torch: ['/data/torch']", "import", "torch-shadowed"),
    ("RuntimeError: DataLoader worker (pid(s) 14619) exited unexpectedly", "dataloader", "dataloader-worker-killed"),
    ("RuntimeError: rank 1 did not answer within 20 s (wait timeout after 20000ms, keys: /join/1/1)", "join", "rank-hung"),
    ("OSError: [Errno 24] Too many open files", "dataloader", "nofile-limit-too-low"),
    ("RuntimeError: [enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 268435456 bytes.", "device", "host-memory-oom"),
    ("A module that was compiled using NumPy 1.x cannot be run in NumPy 2.0.0", "import", "numpy2-with-old-torch"),
    ("ImportError: No module named 'numpy._core._multiarray_umath'", "import", "numpy-broken"),
    ("RuntimeError: Failed to load the backend extension: vendor. You can disable extension auto-loading with TORCH_DEVICE_BACKEND_AUTOLOAD=0.", "import", "torch-backend-broken"),
    ("Fatal Python error: Illegal instruction\nSIGILL", "gemm", "cpu-lacks-avx"),
    ("ModuleNotFoundError: No module named '_ctypes'", "import", "python-incomplete"),
    ("ModuleNotFoundError: No module named 'sympy'", "import", "torch-requirements-missing"),
    ("ModuleNotFoundError: No module named 'networkx'", "layers", "torch-requirements-missing"),
    ("ImportError: SymPy now depends on mpmath as an external library. See https://docs.sympy.org/latest/install.html#mpmath", "train", "torch-requirements-missing"),
    ("ImportError: cannot import name 'deprecated' from 'typing_extensions' (/x/typing_extensions.py)", "import", "torch-requirements-missing"),
    ("ImportError: cannot import name 'Random' from 'random' (/x/random.py); /x/random.py hides a module of the standard library", "import", "stdlib-hidden"),
    ("Fatal Python error: config_init_hash_seed: PYTHONHASHSEED must be \"random\" or an integer in range [0; 4294967295]", "import", "python-does-not-start"),
    ("OSError: /x/torch/lib/libgomp.so.1: file too short", "import", "torch-install-damaged"),
    ("Fatal Python error: Bus error", "import", "torch-install-damaged"),
    ("ModuleNotFoundError: No module named 'torch.fx.experimental'", "import", "torch-install-damaged"),
    ("EOFError: marshal data too short", "import", "torch-install-damaged"),
    ("OSError: [Errno 5] Input/output error (torch: [enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0): '/c.pt'", "checkpoint", "storage-io-error"),
    ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory.", "checkpoint", "checkpoint-damaged"),
    ("g++: error: unrecognized command line option '-std=c++17'", "compile", "host-compiler-too-old"),
    ("g++: fatal error: cannot execute 'cc1plus': execvp: No such file or directory", "compile", "build-tool-missing"),
    ("g++: fatal error: Killed signal terminated program cc1plus", "compile", "host-memory-oom"),
    ("OSError: /c/x.main.so: failed to map segment from shared object.", "compile", "compile-cache-not-executable"),
    ("torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 0, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use", "import", "ephemeral-ports-exhausted"),
    ("rank 1 was ended by SIGXCPU", "train", "cpu-time-limit"),
    ("NCCL WARN Call to ibv_reg_mr failed with error Cannot allocate memory", "allreduce", "memlock-limit-too-low"),
    ("NCCL WARN NET/IB : Got completion from peer 10.2.0.5<33092> with error 12, opcode 0, len 0, vendor err 129 (Recv)", "allreduce", "roce-gid-index"),
    ("NCCL WARN NET/IB: Got completion from peer 10.9.9.6<51161> with status=12 opcode=129 len=524288 vendor err 129 (Recv)", "", "roce-gid-index"),
    ("NCCL WARN NET/IB: Got completion from peer 10.1.2.1<40554> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_RECV(129)", "", "roce-gid-index"),
    ("NCCL WARN NET/IB: Got completion from peer 10.9.9.6<51161> with status=4 opcode=0 len=0 vendor err 81 (Send)", "", "gpudirect-rdma-disabled"),
    ("NCCL WARN Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation cannot be performed in the present state'.", "", "fabric-manager-not-running"),
    ("Bootstrap Root : rank 1 of 8 ranks has already checked in", "rendezvous", "wrong-world-size"),
    ("RuntimeError: CUDA error: peer access is not supported between these two devices", "", "geforce-p2p-broken"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`", "gemm", "gpu-memory-in-use"),
    ("RuntimeError: CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx( handle, opa, opb, m, n, k)`", "gemm", "cublas-shadowed-by-ld-library-path"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH", "conv", "cudnn-shadowed-by-ld-library-path"),
    ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "conv", "cudnn-shadowed-by-ld-library-path"),
    ("Unable to load any of {libcudnn_ops.so.9.1.0, libcudnn_ops.so.9.1, libcudnn_ops.so.9, libcudnn_ops.so}", "conv", "cudnn-not-on-loader-path"),
    ("RuntimeError: No CUDA GPUs are available", "device", "cuda-visible-devices-wrong"),
    ("RuntimeError: CUDA error: device-side assert triggered", "train", "device-side-assert"),
    ("RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method", "dataloader", "cuda-in-forked-process"),
    ("ptxas fatal   : Value 'sm_120' is not defined for option 'gpu-name'", "compile", "gpu-arch-not-in-wheel"),
    ("triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.", "compile", "triton-out-of-resources"),
    ("RuntimeError: 0 active drivers ([]). There should only be one.", "compile", "no-nvidia-driver"),
    ("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=BROADCAST) ran for 600081 milliseconds before timing out.", "ddp", "rank-hung"),
    ("Error while creating shared memory segment /dev/shm/nccl-Jq4Xnb (size 9637888), error: No space left on device", "allreduce", "dev-shm-too-small"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "stage", "cause"), WORDS)
def test_words_stand_for_their_cause(words: str, stage: str, cause: str) -> None:
    found = known(words, stage)
    assert found is not None and found.causes[0] == cause, found


@pytest.mark.parametrize(
    "words",
    ["", "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)", "KeyError: 'x'", "Killed", "AssertionError"],
)
def test_other_words_stand_for_none(words: str) -> None:
    assert known(words, "ddp") is None


def test_each_cause_is_told_of_somewhere() -> None:
    """A slug is a rule's, one of causes.csv, or the smoke test's own."""
    own = {
        "checkpoint-stale",
        "cpu-time-limit",
        "cuda-in-forked-process",
        "device-side-assert",
        "gpu-display-timeout",
        "system-calls-refused",
        "triton-out-of-resources",
        "wrong-world-size",
    }
    used = {cause for row in tables.rows("sentences") for cause in row["cause"].split("|") if cause}
    told = {row["cause"] for row in tables.rows("causes")} | {rule.cause for rule in CATALOGUE}
    assert used - told <= own
