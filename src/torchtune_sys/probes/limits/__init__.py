"""Limits: getrlimit, the control group's tasks, systemd's units and their drop-ins, logind's configuration."""
