"""Kernel settings: /proc/sys, and the files of sysctl.d, tuned and the boot loader that set them."""
