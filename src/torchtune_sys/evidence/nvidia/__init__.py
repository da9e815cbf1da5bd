"""Readers of what NVIDIA's tools print: nvidia-smi in all of its forms, and nvidia-bug-report.sh."""
