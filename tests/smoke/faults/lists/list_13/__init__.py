"""The thirteenth list: one shape of one operation, slow periods, disks and clocks, and what processes inherit or libraries change."""
