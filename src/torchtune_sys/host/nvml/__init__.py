"""NVML, asked in a child process of its own: it may hang or crash, and must not crash the tool."""
