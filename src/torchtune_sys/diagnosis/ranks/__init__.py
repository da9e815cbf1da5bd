"""Find which rank or host failed first, came late, or is missing, where the program itself does not say so."""
