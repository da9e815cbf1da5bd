"""The machine: /sys/class/hwmon, /sys/devices/system/edac, clocks, memory modules of the SMBIOS table, load of services."""
