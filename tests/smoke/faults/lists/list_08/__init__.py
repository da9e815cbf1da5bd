"""The eighth list: faults whose kinds another author named, who had not read the code. Opened after their first result."""
