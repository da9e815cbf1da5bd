"""Classify rules: current faults of the host are fatal in a hook; in a job also faults of the job itself.

Each rule of severity error, and each that several hosts make one, stands in exactly one of three groups (``tests/preflight/test_hosts_now.py``
asks it of a new rule). Who answers wrongly here drains nodes that are well: a finding is the host's now if no user's process can
cause it, and if it ends when the host is repaired.
"""

from __future__ import annotations

STRAGGLER = "straggler-compute"

HOSTS_NOW = frozenset(
    (
        # what runs on the machine, and whether the driver serves the GPUs at this moment
        "wsl1-without-gpu",
        "no-nvidia-driver",
        "nouveau-loaded",
        "nvidia-module-not-built-for-kernel",
        "secure-boot-blocks-module",
        "nvidia-driver-not-loaded",
        "nvidia-uvm-barred",  # by a file of root's
        "nvml-driver-library-mismatch",
        "driver-does-not-support-gpu",
        "open-module-on-pre-turing-gpu",
        "proprietary-module-on-blackwell-gpu",
        "driver-tools-fail",
        "amdgpu-not-loaded",
        "fabric-manager-not-running",
        "container-lost-gpu-cgroup",  # of slurmd's own container, in which its jobs run
        # counters and states that the GPUs tell; a reset clears what it mends
        "gpu-fallen-off-bus",
        "gpu-requires-reset",
        "gpu-ecc-uncorrectable",
        "gpu-row-remap-failed",
        "compute-mode-prohibited",  # set by root alone
        "mig-without-instances",  # made by root alone
        "gpu-fabric-registration-failed",
        "gpu-confidential-not-ready",
        # messages that hold until the driver is loaded again, the GPU is reset, or the machine is started, each told apart in its rule
        "xid-gpu-lost",
        "xid-memory-error",
        "xid-gsp-error",
        "xid-nvlink-error",
        "xid-gpu-fault",
        "gpu-initialisation-failed",
        "uvm-hmm-stops-cuda",
        "amdgpu-reset-failed-logged",
        "amdgpu-uncorrectable-errors-logged",
        "amdgpu-initialisation-failed",
        "accelerator-given-up-logged",
        "gpu-bar-not-assigned",
        "driver-ignores-gpu",
        "gpu-needs-proprietary-module",
        "other-driver-holds-gpu",
        "gsp-firmware-missing",
        "module-signature-refused",
        "module-of-another-kernel-refused",
        "memory-uncorrected-errors",
        "kernel-crash-logged",
        "memory-uncorrected-counted",
        # places that each job uses
        "dev-shm-too-small",
        "dev-shm-not-writable",
        "filesystem-not-answering",
        "temporary-directory-not-writable",
        "disk-full",
        "inodes-exhausted",
        "loopback-unusable",
        "localhost-not-loopback",
        "hostname-resolves-to-loopback",
        "hostname-unresolvable",
    )
)

OF_A_JOB: dict[str, str] = {
    "container-uid-without-passwd": "the user's",
    "cuda-visible-devices-wrong": "a variable of the job",
    "cuda-allocator-setting-invalid": "a variable of the job",
    "gpu-device-permission": "what this user may open",
    "rocm-device-permission": "what this user may open",
    "container-without-gpu-devices": "the container that asks",
    "cuda-stub-library-loaded": "LD_LIBRARY_PATH of the process that asks",
    "driver-too-old": "for one build of torch",
    "gpu-arch-not-in-wheel": "one build of torch",
    "ptx-newer-than-driver": "one build of torch",
    "cpu-only-build": "one build of torch",
    "cuda-build-on-amd-host": "one build of torch",
    "intel-gpu-not-served": "for one build of torch",
    "rocm-arch-not-in-wheel": "one build of torch",
    "rocm-build-on-nvidia-host": "one build of torch",
    "torch-import-fails": "one Python environment",
    "cuda-not-available-to-torch": "one Python environment",
    "mixed-nvidia-cuda-wheels": "one Python environment",
    "wheel-libs-not-found": "one Python environment",
    "numpy2-with-old-torch": "one Python environment",
    "torch-for-another-python": "one Python environment",
    "temporary-path-too-long": "a variable of the job",
    "extension-torch-abi-mismatch": "one Python environment",
    "extension-cuda-mismatch": "one Python environment",
    "extension-made-for-cuda": "one Python environment",
    "cudnn-shadowed-by-ld-library-path": "a variable of the job",
    "nvjitlink-shadowed-by-ld-library-path": "a variable of the job",
    "forward-compat-unsupported-gpu": "a variable of the job, or its image",
    "libstdcxx-too-old": "for one Python environment",
    "cudnn-not-on-loader-path": "one Python environment",
    "interpreter-does-not-start": "one Python environment",
    "glibc-too-old": "for one Python environment",
    "environment-not-executable": "one Python environment",
    "master-port-in-use": "a port that one job chose; a process of any user may hold it",
    "cgroup-pids-exhausted": "the control group of the process that asks",
    "memlock-limit-too-low": "the limits of the process that asks",
    "address-space-limit": "the limits of the process that asks",
    "thread-stack-larger-than-memory": "the limits of the process that asks",
    "data-path-unreadable": "a path that a person named",
    "checkpoints-not-writable": "a path that a person named",
    "gloo-interface-missing": "a variable of the job",
    "nccl-net-without-device": "a variable of the job",
    "variable-refused": "a variable of the job",
    "rank-seeks-master-on-own-host": "a variable of the job",
    "gloo-interface-doubtful": "a variable of the job",
    "nccl-wrong-interface": "a variable of the job decides; where it has none, its pre-flight in the job says so",
}
"""Fatal in a job, a warning in a hook; by rule, whose it is."""

PAST: dict[str, str] = {
    "driver-mismatch-logged": "any program with driver libraries of its own causes it; nvml-driver-library-mismatch compares what is installed",
    "fabric-manager-version-mismatch": "the log of a start; fabric-manager-not-running asks the GPUs",
    "network-adapter-fault": "the adapter recovers by itself, and a cable or transceiver is changed without a restart",
    "disk-errors-logged": "disks are exchanged and file systems mended without a restart",
    "amdgpu-uncorrectable-errors-counted": "the count stays when the GPU was reset and its page retired; amdgpu-uncorrectable-errors-logged knows the reset",
    "critical-temperature-logged": "it is cool again, or the machine is off",
}
"""Told, and a warning everywhere: it was, nothing says that it still is; by rule, why."""

PROVEN = frozenset(
    (
        "device-computes-wrong",
        "gemm-wrong",
        "convolution-wrong",
        "memory-corrupts",
        "copy-corrupts",
        "silent-data-corruption",
        "gpu-ecc-uncorrectable",
        "gpu-fallen-off-bus",
        "nvlink-inactive",
        "p2p-blocked-by-iommu-acs",
        STRAGGLER,
    )
)
"""Causes found by an earlier training that are the hardware's, whichever Python and torch it was; what else failed then was that run's."""
