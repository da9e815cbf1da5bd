"""Pre-flight of all nodes of a job together: find absent, differing or slow nodes and bad links."""
