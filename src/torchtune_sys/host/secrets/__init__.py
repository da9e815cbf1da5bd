"""Take passwords, tokens and keys out of what a host says.

``filter`` is what callers use (:func:`~torchtune_sys.host.secrets.filter.scrubbed`); ``words`` has the tables by which secrets are known and the
words that are sought first; ``values`` decides whether a value is one. The others are imported when a text needs them: ``forms`` (options of
programs, headers, encoded text), ``next_line`` (a value below its name), ``pieces`` (a value in several lines of a table or a dump).
"""
