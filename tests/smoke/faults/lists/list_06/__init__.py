"""The sixth list of faults, written down and committed before any of it was tried: twelve opened after the first result, twelve sealed until the end."""
