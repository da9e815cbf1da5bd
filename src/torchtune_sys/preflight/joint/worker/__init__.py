"""What runs under the Python that is examined: standard library and torch only. The tool hands it over as a script and never imports torch."""
