"""A container image for training: what is in it, and what it must be started with."""
