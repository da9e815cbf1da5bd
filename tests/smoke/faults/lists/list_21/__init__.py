"""The twenty-first list: surroundings that are odd, and a few that are bad: allocators of others, half a CPU, little memory, old containers' filters, clocks
of libraries, variables of OpenMP, MKL and Python. Nothing of it is sealed."""
