"""torchtune-sys: checks a Linux host before PyTorch trains on it."""

__version__ = "0.1.0"
