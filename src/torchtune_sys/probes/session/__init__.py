"""Who runs, how they came here, and the environment that matters to training."""
