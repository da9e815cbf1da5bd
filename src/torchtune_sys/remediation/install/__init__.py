"""What to install on a host: :mod:`~torchtune_sys.remediation.install.plan` decides, the other modules each answer one of its questions."""
