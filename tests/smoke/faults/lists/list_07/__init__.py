"""The seventh list of faults, written down and committed before any of it was tried: of 24 the twelve whose names have the smallest SHA-256 are
sealed until the end."""
