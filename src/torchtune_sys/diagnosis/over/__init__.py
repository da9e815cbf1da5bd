"""Leave out what is told and accuses nobody: errors that a passing test wanted, meanings in a list, events after which all was well again."""
