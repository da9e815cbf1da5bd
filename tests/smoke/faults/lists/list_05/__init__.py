"""The fifth list of faults, written down and committed before any of it was tried: six opened after the first result, six sealed until the end."""
