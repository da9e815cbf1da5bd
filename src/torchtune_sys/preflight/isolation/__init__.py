"""Find a bad node or link by group tests: choose the next round from the results so far. Pure: no clock, no host, randomness only from a seed.

The fault model. A test runs a collective among a group of units (nodes, or one network card of a node each) and passes or fails. It fails
when the group holds a bad unit, or both ends of a bad pair, in either direction; it may miss a fault, or fail for nothing, once in a while.
What fails together and never in smaller groups is a fault of its own. Groups of one round are disjoint, so they run at the same time.
"""
