"""The fourteenth list: what variables, plug-ins, limits and the kernel do to a training that the tests before it did not look at."""
