"""NVML, asked in a child process of its own: it may hang or crash, and must not take the tool with it."""
