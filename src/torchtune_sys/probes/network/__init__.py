"""Networks: interfaces, addresses and their names, /sys/class/net, /sys/class/infiniband, NCCL's files and plug-ins."""
