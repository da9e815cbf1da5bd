"""Recover lines as programs printed them: without what surrounds them, completed where they were cut, in common words."""
