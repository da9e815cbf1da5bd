"""``python -m torchtune_sys``."""

from torchtune_sys.cli.main import main

main()
