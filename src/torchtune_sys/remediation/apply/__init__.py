"""Changing a host, and taking the change back: a journal on the disk before the first change, every step undone from it.

The order of things is what makes a crash harmless: what was there is read and written to the journal, the journal is synced,
then one step after the other is announced there, done, and its effect noted. Undoing reads nothing but the journal and the host.
"""
