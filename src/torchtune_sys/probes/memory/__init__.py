"""Memory: /proc/meminfo, /proc/vmstat, swap, huge pages, /dev/shm, the control group's limits."""
