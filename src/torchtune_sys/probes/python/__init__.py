"""The Python one trains with: the interpreter in a child process, its packages' metadata, the libraries that its torch loads."""
