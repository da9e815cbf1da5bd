"""Change a host and undo it: the journal is on the disk before the first change, and every step is undone from it.

The order of things is what makes a crash harmless: what was there is read and written to the journal, the journal is synced,
then one step after the other is announced there, done, and its effect noted. Undoing reads nothing but the journal and the host.
"""
