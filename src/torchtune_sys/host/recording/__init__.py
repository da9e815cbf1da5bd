"""Writing a host down, with names, addresses and secrets taken out."""
