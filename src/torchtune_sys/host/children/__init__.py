"""Start child processes: as which user, with which environment and deadline; and the code that runs in the tool's own children."""
