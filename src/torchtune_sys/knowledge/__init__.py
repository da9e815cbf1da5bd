"""Data tables, each row with its source, and their typed loaders. Pure: reads only its own package data."""
