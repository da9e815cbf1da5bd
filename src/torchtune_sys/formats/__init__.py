"""Text and tables that programs, drivers and firmware print, read into values. Pure: shared by probes and by pasted text."""
