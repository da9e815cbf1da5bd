"""Pre-flight of all nodes of a job together: who did not come, which node differs or is slow, which link is bad."""
