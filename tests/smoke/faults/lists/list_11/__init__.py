"""The eleventh list: what no stage compared so far, and who it was where only that was known that something is wrong."""
