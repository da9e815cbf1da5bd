"""The second list of faults, written down before what catches them was built: those that reports named, twenty that were opened after
the first result, and twenty that were not tried before the end."""
