"""From the paths that matter down to the disks: /proc/self/mountinfo, statfs, /sys/block."""
