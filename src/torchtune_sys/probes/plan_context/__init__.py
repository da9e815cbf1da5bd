"""What planning must know beyond the facts that rules judge: our own files, tools, other owners of settings, room for ranks."""
