"""What the command ``generate`` prints: scripts, files, units, images."""
