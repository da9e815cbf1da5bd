"""The command line. click lives here only; each command is imported when it is called."""
