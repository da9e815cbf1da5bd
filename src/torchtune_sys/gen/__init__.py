"""Committed files that are made from the catalogue and the command line: ``python -m torchtune_sys.gen write|check``."""
