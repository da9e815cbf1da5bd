"""The third list of faults, written down before what catches them was built: eighteen that were opened after the first result, nine that
were not tried before the end."""
