"""The twelfth list: what hosts do to a rank now and then, or to one rank alone."""
