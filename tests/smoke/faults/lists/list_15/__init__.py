"""The fifteenth list: what a kernel of torch, a filter of system calls and a host's small files do to a training that the tests before it did not look at."""
