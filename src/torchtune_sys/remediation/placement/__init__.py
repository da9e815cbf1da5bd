"""Where ranks run: whole physical cores near each rank's GPU, and the memory of that NUMA node."""
