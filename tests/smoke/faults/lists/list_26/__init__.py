"""The twenty-sixth list: what an invariant holds that no single function shows (sums that are alike to the last bit on all ranks, what is held after each exchange, what a hook or a mode reaches),
and ordinary faults of loaders, locks, signals and checkpoints. Which six of the eighteen are sealed ``random.Random(2035).sample`` decided over their sorted names."""
