"""Packages and their updates, kernels for the next boot, compilers and CUDA toolkits, container runtimes."""
