"""The training smoke test: a driver without torch, and a worker that needs torch and the standard library only."""
