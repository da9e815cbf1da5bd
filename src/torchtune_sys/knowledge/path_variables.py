"""Environment variables that name a program, a file or a directory which has to exist, and who reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

READERS = {
    "CC": "the C compiler of Triton and torch.compile",
    "CXX": "the C++ compiler of torch.compile and of extensions",
    "CUDAHOSTCXX": "nvcc's host compiler",
    "NVCC_CCBIN": "nvcc's host compiler",
    "CUDA_HOME": "the CUDA toolkit of extensions that are compiled",
    "CUDA_PATH": "the CUDA toolkit of extensions that are compiled",
    "ROCM_HOME": "ROCm, for extensions that are compiled",
    "ROCM_PATH": "ROCm, for extensions that are compiled",
    "TRITON_PTXAS_PATH": "Triton's assembler",
    "TRITON_LIBCUDA_PATH": "the directory in which Triton looks for libcuda",
    "NCCL_GRAPH_FILE": "NCCL's graph",
    **dict.fromkeys(("NCCL_NET_PLUGIN", "NCCL_TUNER_PLUGIN"), "a plug-in of NCCL, which goes on without it"),
    "NCCL_DEBUG_FILE": "the directory of NCCL's log",
    "TORCH_LOGS_OUT": "torch's log: without its directory import torch fails",
    "TORCH_FR_DUMP_TEMP_FILE": "the directory to which torch's flight recorder writes when a collective hangs",
    "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": "the directory to which torch's flight recorder writes when a collective hangs",
    "REQUESTS_CA_BUNDLE": "certificates for downloads, as with huggingface_hub",
    "CURL_CA_BUNDLE": "certificates for downloads",
    "SSL_CERT_FILE": "certificates for downloads",
    "SSL_CERT_DIR": "certificates for downloads",
    "TMPDIR": "temporary files: Python takes /tmp without a word, mktemp and others fail",
}
_COMPILERS = ("CC", "CXX", "CUDAHOSTCXX", "NVCC_CCBIN")
_FOLDERS = ("CUDA_HOME", "CUDA_PATH", "ROCM_HOME", "ROCM_PATH")
"""One directory each, no list: what ``export CUDA_HOME=$CUDA_HOME:/usr/local/cuda`` makes of an unset one is none."""
_WRITTEN = ("NCCL_DEBUG_FILE", "TORCH_LOGS_OUT", "TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
"""Written by the library itself: its directory has to be there."""


def named(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each variable of the table with the absolute path that has to exist; what is searched on PATH, and lists, are left out.

    >>> dict(named({"CC": "ccache /usr/bin/gcc", "CXX": "/opt/g++ -O2", "CUDA_HOME": "/opt/cuda", "NCCL_DEBUG_FILE": "/logs/nccl.%h", "NCCL_NET_PLUGIN": "/a.so,/b.so"}))
    {'CXX': '/opt/g++', 'CUDA_HOME': '/opt/cuda', 'NCCL_DEBUG_FILE': '/logs'}
    >>> dict(named({"CUDA_HOME": ":/usr/local/cuda", "SSL_CERT_DIR": ":/etc/ssl/certs"}))
    {'CUDA_HOME': '/:/usr/local/cuda'}
    """
    for name in READERS:
        value = env.get(name, "").strip()
        path = (value.split() or [""])[0] if name in _COMPILERS else value
        if name in _WRITTEN:
            path = path.rpartition("/")[0]
        if name in _FOLDERS and path.startswith(":"):
            path = f"/{path}"
        if path.startswith("/") and "%" not in path and (":" not in path or name != "SSL_CERT_DIR") and "," not in path:
            yield name, path


def wrapped(value: str) -> bool:
    """Return whether a compiler's variable holds several words, and not one path with a blank in it.

    >>> [wrapped(value) for value in ("ccache gcc", "/usr/bin/sccache /usr/bin/gcc", "g++ -O2", "/opt/my tools/bin/gcc", " gcc-13 ", "")]
    [True, True, True, False, False, False]
    """
    words = value.split()
    return len(words) > 1 and not ("/" in words[1] and not words[1].startswith(("/", "-")))
