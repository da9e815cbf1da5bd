"""Which programs, which of their releases, which files and which calls print messages."""

from __future__ import annotations

from typing import NamedTuple

from catalogue.c_calls import Call


def calls(style: str, severity: str, names: str) -> list[Call]:
    return [Call(name, style, severity) for name in names.split()]


class Repository(NamedTuple):
    program: str
    name: str
    tags: str
    """Pattern of the tags (one group: the release); empty: the newest state."""
    most: int
    """Releases to sample, evenly, the newest always."""
    paths: str
    """Pattern of the files."""
    calls: list[Call]
    """Empty: Python files, or shell where the name says so."""
    least: str = ""
    """The oldest release that is looked at."""


NCCL = calls("printf", "warning", "WARN NVLS_WARN") + calls("printf", "info", "INFO VERSION") + [Call("CUCHECK", "printf", "")]
GO = calls("printf", "error", "Errorf Fatalf Fatal Error Wrapf Wrap New errors.New fmt.Errorf") + calls(
    "printf", "warning", "Warnf Warningf Warn Warning"
)
LOGGED = calls("printf", "error", "error fatal err die perror ERR") + calls("printf", "warning", "warn warning WARN")
KERNEL = (
    calls(
        "printf",
        "error",
        "mlx5_core_err mlx5_core_err_rl dev_err pr_err pci_err dev_err_ratelimited mlx5_ib_err pr_emerg pr_crit netdev_err "
        "pr_err_ratelimited panic dev_crit BUG pci_printk dev_printk",
    )
    + calls(
        "printf",
        "warning",
        "mlx5_core_warn mlx5_core_warn_rl dev_warn pr_warn pci_warn mlx5_ib_warn netdev_warn pr_warn_once pr_warn_ratelimited "
        "dev_warn_once WARN_ONCE pr_notice printk pr_cont",
    )
    + calls("printf", "info", "mlx5_core_info dev_info pci_info netdev_info pr_info dev_notice")
)

REPOSITORIES = [
    Repository("nccl", "NVIDIA/nccl", r"v(2\.\d+\.\d+)-\d+", 40, r"^src/.*\.(cc|cu|h|cuh)$", NCCL, "2.4.2"),
    Repository("rccl", "ROCm/rccl", r"rocm-(\d+\.\d+\.\d+)", 10, r"^src/.*\.(cc|cu|h|cpp)$", NCCL, "3.0.0"),
    Repository(
        "gloo",
        "pytorch/gloo",
        "",
        1,
        r"^gloo/(?!test/|benchmark/|examples/).*\.(cc|h|cu)$",
        calls(
            "joined",
            "error",
            "GLOO_ENFORCE GLOO_ENFORCE_EQ GLOO_ENFORCE_NE GLOO_ENFORCE_GT GLOO_ENFORCE_GE GLOO_ENFORCE_LT GLOO_ENFORCE_LE "
            "GLOO_THROW_IO_EXCEPTION GLOO_THROW GLOO_THROW_INVALID_OPERATION_EXCEPTION GLOO_ERROR MakeString signalException",
        )
        + calls("joined", "warning", "GLOO_WARN")
        + calls("joined", "info", "GLOO_INFO"),
    ),
    Repository(
        "aws-ofi-nccl",
        "aws/aws-ofi-nccl",
        r"v(\d+\.\d+\.\d+)(?:-aws)?",
        12,
        r"^src/.*\.(c|cpp)$|^include/.*\.h$",
        calls("printf", "warning", "NCCL_OFI_WARN") + calls("printf", "info", "NCCL_OFI_INFO"),
    ),
    Repository(
        "nvidia-kernel-module",
        "NVIDIA/open-gpu-kernel-modules",
        r"(\d{3}\.\d+(?:\.\d+)?)",
        9,
        r"^kernel-open/(nvidia|nvidia-uvm|nvidia-peermem|nvidia-modeset|nvidia-drm|common)/.*\.(c|h)$|^src/nvidia/(arch|src)/.*\.c$|"
        r"^src/common/(nvswitch|nvlink)/.*\.c$",
        calls(
            "printf",
            "error",
            "nv_printf nvErrorLog_va nvErrorLog nvErrorLog2_va UVM_ERR_PRINT UVM_ERR_PRINT_ALWAYS UVM_ASSERT_MSG NVSWITCH_PRINT_SXID "
            "NVSWITCH_REPORT_NONFATAL NVSWITCH_REPORT_FATAL NV_DRM_DEV_LOG_ERR NV_DRM_LOG_ERR peer_err NV_DEV_PRINTF NV_DEV_PRINTF_STATUS nv_error_printf NV_ERROR_LOG",
        )
        + calls("printf", "", "NV_PRINTF nvlink_print NVSWITCH_PRINT")
        + calls("printf", "info", "UVM_INFO_PRINT NV_DRM_DEV_LOG_INFO peer_info")
        + calls("printf", "warning", "peer_warn"),
        "515.43.04",
    ),
    Repository("nvidia-modprobe", "NVIDIA/nvidia-modprobe", r"(\d{3}\.\d+(?:\.\d+)?)", 3, r"\.c$", LOGGED, "515.43"),
    Repository(
        "nvidia-container-toolkit",
        "NVIDIA/nvidia-container-toolkit",
        r"v(1\.\d+\.\d+)",
        10,
        r"^(cmd|internal|pkg|tools)/.*(?<!_test)\.go$",
        GO + calls("printf", "error", "log.Panicln log.Panicf log.Fatalf Panicln Panicf"),
    ),
    Repository(
        "k8s-device-plugin", "NVIDIA/k8s-device-plugin", r"v(0\.\d+\.\d+)", 6, r"^(cmd|internal|api)/.*(?<!_test)\.go$", GO
    ),
    Repository(
        "runc",
        "opencontainers/runc",
        r"v(1\.\d+\.\d+)",
        6,
        r"^(?!vendor/|tests/|contrib/).*(?<!_test)\.go$|nsexec\.c$",
        GO + calls("printf", "error", "bail newSystemErrorWithCause newGenericError"),
    ),
    Repository(
        "podman",
        "containers/podman",
        r"v(\d+\.\d+\.\d+)",
        2,
        r"^(libpod|pkg/(specgen|rootless|util|cgroups))/.*(?<!_test)\.go$",
        GO,
        "3.0.0",
    ),
    Repository(
        "docker",
        "moby/moby",
        r"(?:docker-)?v(\d+\.\d+\.\d+)",
        2,
        r"^(daemon|runconfig|oci)/(?!.*(logger|cluster|graphdriver)).*(?<!_test)\.go$",
        GO + calls("printf", "error", "errdefs.InvalidParameter InvalidParameter NotFound"),
        "19.0.0",
    ),
    Repository(
        "containerd",
        "containerd/containerd",
        r"v(\d+\.\d+\.\d+)",
        2,
        r"^(core/runtime|cmd/containerd-shim|internal/cri|pkg/(cri|oci|cdi)|runtime|oci)/.*(?<!_test)\.go$",
        GO,
        "1.4.0",
    ),
    Repository(
        "apptainer",
        "apptainer/apptainer",
        "",
        1,
        r"^(cmd|internal|pkg)/.*(?<!_test)\.go$|^cmd/starter/c/.*\.c$",
        GO + calls("printf", "error", "fatalf errorf"),
    ),
    Repository(
        "dkms",
        "dell/dkms",
        r"v?(\d\.\d+(?:\.\d+)?)",
        9,
        r"(^|/)dkms(\.in)?$|kernel_postinst|dkms_autoinstaller|dkms_common",
        [],
        "2.2",
    ),
    Repository(
        "kmod",
        "kmod-project/kmod",
        r"v(\d+(?:\.\d+)?)",
        5,
        r"^(tools|libkmod)/.*\.c$",
        LOGGED + calls("printf", "error", "ERR CRIT SHOW") + calls("printf", "warning", "WRN"),
        "20",
    ),
    Repository(
        "slurm",
        "SchedMD/slurm",
        r"slurm-(\d+-\d+-\d+)-\d+",
        5,
        r"^src/(common|slurmd|slurmctld|srun|sbatch|salloc|interfaces|plugins/(gres|gpu|cgroup|task|mpi|proctrack))/.*\.c$",
        calls("printf", "error", "error fatal slurm_error") + calls("printf", "warning", "warning"),
        "20-02-1",
    ),
    Repository(
        "ucx",
        "openucx/ucx",
        r"v(1\.\d+\.\d+)",
        5,
        r"^src/.*\.(c|h)$",
        calls("printf", "error", "ucs_error ucs_fatal uct_ib_check_memlock_limit_msg")
        + calls("printf", "warning", "ucs_warn ucs_diag"),
        "1.8.0",
    ),
    Repository(
        "rdma-core",
        "linux-rdma/rdma-core",
        r"v(\d+\.\d+)",
        2,
        r"^(libibverbs|librdmacm|providers/(mlx5|efa|irdma|bnxt_re))/.*\.c$",
        calls("printf", "error", "fprintf verbs_err mlx5_err") + calls("printf", "warning", "verbs_warn"),
        "20.0",
    ),
    Repository("open-mpi", "open-mpi/ompi", "", 1, r"^(ompi|opal)/.*help-.*\.txt$", []),
    Repository(
        "glibc",
        "bminor/glibc",
        r"glibc-(2\.\d+)",
        5,
        r"^elf/(dl-|rtld|ldconfig|cache|readlib).*\.c$|^(nptl|malloc|nss|resolv|sunrpc)/[^/]*\.c$|^inet/getaddrinfo.*|^sysdeps/posix/gai_strerror.*|^posix/gai_strerror.*|^debug/.*\.c$",
        calls(
            "printf",
            "error",
            "N_ _dl_signal_error _dl_signal_exception _dl_fatal_printf _dl_error_printf __libc_fatal _dl_exception_create_format malloc_printerr error _ _dl_exception_create",
        ),
        "2.17",
    ),
    Repository("pip", "pypa/pip", r"(\d+\.\d+(?:\.\d+)?)", 6, r"^src/pip/_internal/.*\.py$", [], "9.0"),
    Repository(
        "pip-resolver",
        "pypa/pip",
        r"(\d+\.\d+(?:\.\d+)?)",
        2,
        r"^src/pip/_vendor/(resolvelib|urllib3|requests)/.*\.py$",
        [],
        "21.0",
    ),
]
