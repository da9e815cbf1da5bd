"""The only door to a host: files, commands, the environment, system calls, NVML."""
