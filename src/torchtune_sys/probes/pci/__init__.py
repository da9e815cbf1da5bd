"""PCI functions: /sys/bus/pci/devices, configuration space, NCCL's topology file."""
