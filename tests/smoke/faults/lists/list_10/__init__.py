"""The tenth list: thirty faults, written down before the code that is to name them was read."""
