"""A container image for training: its contents and the flags to start it with."""
