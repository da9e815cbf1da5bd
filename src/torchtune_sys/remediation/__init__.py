"""From findings to a changed host and back: plan, placement of ranks, installation, images, apply and undo."""
