"""The twenty-seventh list: options and arguments that are ignored (nesterov, scale, norm_type, inputs, drop_last, timeout), what stops at a model's first level, what an error or an evaluation leaves
behind, exchanges of nothing and in groups, and a sandbox's limits. Which ten of the thirty are sealed ``random.Random(2036).sample`` decided over their sorted names."""
