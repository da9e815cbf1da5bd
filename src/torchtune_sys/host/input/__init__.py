"""Open what ``--from`` and ``--root`` name, within limits of size and time."""
