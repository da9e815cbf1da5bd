"""The environment variables that are read (an allow-list), and the filter that hides secrets in them."""

from __future__ import annotations

from collections.abc import Mapping

from torchtune_sys.model.launchers import VARIABLES
from torchtune_sys.model.patterns import pattern

PREFIXES = (
    "NCCL_",
    "CCL_",  # oneCCL's, or NCCL's without the first letter
    "NCLL_",  # NCCL's, misspelt
    "RCCL_",
    "TORCH",  # TORCH_*, TORCHINDUCTOR_*, TORCHELASTIC_*, TORCHDYNAMO_*
    "PYTORCH_",
    "CUDA",  # CUDA_*, CUDART_*, CUDAHOSTCXX
    "CUDNN_",
    "CUBLAS",
    "NVIDIA_",
    "NVTE_",
    "NVSHMEM_",
    "NV_",
    "NVTX_",
    "HIP_",
    "HSA_",
    "ROCR_",
    "ROCM_",
    "ROCBLAS_",
    "MIOPEN_",
    "OMP_",
    "MKL_",
    "ONEDNN_",
    "DNNL_",
    "ATEN_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
    "BLIS_",
    "NUMEXPR_",
    "VECLIB_",
    "GLOO_",
    "PET_",
    "TP_",
    "SLURM_",
    "OMPI_",
    "PMI",
    "PALS_",
    "LSB_",
    "PBS_",
    "UCX_",
    "UCC_",
    "FI_",
    "RDMAV_",
    "MLX",
    "IBV_",
    "HF_",
    "TRITON_",
    "BNB_",  # bitsandbytes
    "TRANSFORMERS_",
    "DEEPSPEED_",
    "ACCELERATE_",
    "CONDA_",
    "XDG_CACHE",
    "XDG_SESSION",
    "PYTHON",
    "MALLOC_",
    "GLIBC_",
    "LD_",
    "APPTAINER_",
    "SINGULARITY_",
    "JAX_",
    "XLA_",
    "ZE_",
    "KINETO_",
    "FAKETIME",  # by which a preloaded libfaketime tells another time
)
NAMES = frozenset(
    (
        "PATH", "HOME", "USER", "LOGNAME", "LNAME", "USERNAME", "SUDO_USER", "DOAS_USER", "SUDO_UID", "HOSTNAME", "SHELL", "LANG",
        "LC_ALL", "TERM", "TMPDIR", "TMP", "TEMP", "PWD", "VIRTUAL_ENV",
        "GROUP_WORLD_SIZE", "ROLE_RANK", "NPROC_PER_NODE", "MASTER_ADDR", "MASTER_PORT", "KUBERNETES_SERVICE_HOST", "container",
        "WSL_DISTRO_NAME", "WSL_INTEROP", "JOB_COMPLETION_INDEX", "PIXI_ENVIRONMENT_NAME", "UV_PROJECT_ENVIRONMENT", "DISPLAY", "INVOCATION_ID",
        "COLAB_GPU", "KAGGLE_KERNEL_RUN_TYPE", "CC", "CXX", "NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS", "CPATH", "C_INCLUDE_PATH", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR",
        "VLLM_HOST_IP", "ONEAPI_DEVICE_SELECTOR", "AMD_LOG_LEVEL", "AMD_SERIALIZE_KERNEL", "AMD_SERIALIZE_COPY", "MLIR_ENABLE_DUMP",
    )
)  # fmt: skip
_SECRET = ("KEY", "TOKEN", "SECRET", "PASSW", "PASSPHRASE", "CREDENTIAL", "COOKIE", "_AUTH", "PRIVATE", "JWT", "PROXY")
_SECRET_ENDS = ("_PAT", "_PASS", "SSHPASS", "_PWD", "_PW")
_CREDENTIALS_IN_URL = pattern(r"://[^/\s@]*:[^/\s@]*@")
_MAY_HOLD_FREE_TEXT = ("SLURM_", "PBS_", "LSB_")
_FREE_TEXT = pattern(
    r"SLURM_(?:JOB_)?(?:NAME|COMMENT|ADMIN_COMMENT|SYSTEM_COMMENT|EXTRA|CMD|COMMAND)|SLURM_SPANK_.*|SLURM_STEP_NAME|PBS_JOBNAME|LSB_(?:JOBNAME|JOBDESC|SUB_.*)|.*_COMMAND_LINE"
)
"""Variables that hold what a person typed, which may be anything; no rule reads them."""
_HARMLESS = frozenset(("SLURM_TOPOLOGY_ADDR_PATTERN", "TOKENIZERS_PARALLELISM"))


def relevant(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that training, its libraries and its launchers read; secrets are never among them.

    >>> relevant({"FAKETIME": "+1d", "EDITOR": "vi", "HF_TOKEN": "x"})
    {'FAKETIME': '+1d'}
    """
    return {
        name: value
        for name, value in env.items()
        if (name in NAMES or name in VARIABLES or name.startswith(PREFIXES))
        and not _is_free_text(name)
        and not secret(name, value)
    }


def looked_for() -> str:
    """Return a fingerprint of the names that :func:`relevant` takes: of two releases with different ones, a variable that the earlier does not
    tell may have been set.

    >>> looked_for() == looked_for(), len(looked_for())
    (True, 6)
    """
    import zlib

    return f"{zlib.crc32(' '.join([*sorted(NAMES | {*VARIABLES}), *PREFIXES]).encode()):08x}"[:6]


def _is_free_text(name: str) -> bool:
    may_be = name.startswith(_MAY_HOLD_FREE_TEXT) or name.endswith("_COMMAND_LINE")
    return may_be and _FREE_TEXT.fullmatch(name) is not None


def secret(name: str, value: str) -> bool:
    """Return whether a variable looks like a secret, by its name or because its value holds a password.

    >>> secret("HF_TOKEN", "x"), secret("https_proxy", "http://joe:pw@proxy:3128"), secret("NCCL_DEBUG", "INFO")
    (True, True, False)
    """
    if name in _HARMLESS:
        return False
    return secret_name(name) or ("://" in value and "@" in value and _CREDENTIALS_IN_URL.search(value) is not None)


def secret_name(name: str) -> bool:
    """Return whether a variable of this name holds a secret, whatever its value.

    >>> secret_name("WANDB_API_KEY"), secret_name("NCCL_IB_PKEY"), secret_name("SLURM_JOB_COMMENT")
    (True, False, False)
    """
    if name in _HARMLESS:
        return False
    upper = name.upper().replace("PKEY", " ")  # of InfiniBand, no secret
    return upper.endswith(_SECRET_ENDS) or any(word in upper for word in _SECRET)
