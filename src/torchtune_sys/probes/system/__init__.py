"""The distribution, kernel, C library, container and virtual machine: os-release, uname, /proc/1, DMI."""
