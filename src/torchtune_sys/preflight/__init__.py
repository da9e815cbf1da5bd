"""Pre-flight: a node judges itself before a job starts there. Its own faults never keep a node from work."""
