"""The only package that touches a host: files, commands, the environment, system calls, NVML."""
