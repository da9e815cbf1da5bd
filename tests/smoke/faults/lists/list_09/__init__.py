"""The ninth list: faults that somebody else wrote down, who had not read the code, and others of the same kinds."""
