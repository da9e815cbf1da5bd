"""What the ranks of the smoke test run, in the interpreter one trains with: standard library and torch only.

These modules are joined into one script (``torchtune_sys.smoke.script``), in the order of their dependence, and that script is
what runs, under the driver as well as by hand. So each top-level name here is used once, the syntax is that of Python 3.8, and
nothing is imported from outside this package but the standard library and torch (2.0 or newer).
"""
