"""The kernel's log: /dev/kmsg, or what a log daemon kept; /proc/sys/kernel/tainted; names below /sys/fs/pstore, /sys/class/block, /var/lib/systemd/pstore, /var/crash."""
