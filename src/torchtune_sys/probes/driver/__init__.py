"""The NVIDIA driver: /proc/driver/nvidia, /proc/modules, /dev/nvidia*, libraries that the loader finds, services beside it."""
