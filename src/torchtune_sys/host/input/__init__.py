"""What ``--from`` and ``--root`` name: opened within bounds of size and time."""
