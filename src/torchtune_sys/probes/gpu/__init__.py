"""GPUs: NVML or nvidia-smi, and /sys/class/kfd for AMD's."""
