"""Processors: /proc/cpuinfo, /sys/devices/system/cpu, cpufreq, the affinity and the control group of this session."""
