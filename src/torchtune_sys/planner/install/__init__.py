"""What to install on a host: :mod:`~torchtune_sys.planner.install.plan` decides, the other modules each answer one of its questions."""
