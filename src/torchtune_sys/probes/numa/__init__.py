"""NUMA nodes: /sys/devices/system/node and what the session may use of them."""
