"""torchtune-sys: checks a Linux host before PyTorch trains on it."""

__version__ = "0.1.0"
PROGRAM = "torchtune-sys"
"""The command's name where it is installed."""
