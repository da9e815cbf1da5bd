"""Makes ``knowledge/data/messages.tsv``: what programs print, out of their sources and released files."""
