"""The kernel's log: /dev/kmsg, or what a log daemon kept."""
