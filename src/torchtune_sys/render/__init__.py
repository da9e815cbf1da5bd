"""One module per output format. jinja2 lives here only, imported when a format needs it."""
