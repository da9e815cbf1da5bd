"""Limits of what ``--from`` and ``--root`` read, so that no input takes
more than 512 MiB of memory (docs/input-limits.md)."""

from __future__ import annotations

TIMEOUT_S = 30.0
"""How long a pipe may deliver nothing."""
FILE_LIMIT = 128 << 20
"""Bytes of a file or of standard input that are held in memory at once; of an archive, those of its files without the zeros that
follow them: tar writes 4,096 bytes for each file of /sys, which claims that size, and most hold ten."""
STREAM_LIMIT = 4 << 30
"""Bytes of a file or of standard input, before and after it is decompressed: an archive's. The /sys of a machine with 1,000 CPUs
takes about 1.4 GiB, most of it zeros."""
RECORDING_LIMIT = 64 << 20
"""Bytes of a recording; those of real hosts have at most some MiB."""
VALUE_LIMIT = 1_500_000
"""Values in a recording, by its commas and brackets: an empty object takes three bytes there and 64 in memory."""
TEXT_LIMIT = 16 << 20
"""Bytes of a pasted report or log."""
LINE_LIMIT = 500_000
"""Lines of a pasted report or log."""
LINE_LENGTH = 64 << 10
"""Characters of one line of it; what is longer is cut."""
MEMBER_LIMIT = 500_000
"""Entries of an archive; the /sys of a machine with 1,000 CPUs has about 300,000."""
NAME_LIMIT = 4096
"""Bytes of a name in an archive (PATH_MAX)."""
DEPTH_LIMIT = 64
"""Directories in a name; below /sys/devices there are about 20."""
NAMES_LIMIT = 32 << 20
"""Characters of all names in an archive, those of the directories on the way included."""
HOSTS_BUDGET = 320 << 20
"""Bytes that the hosts which compare reads, or the diagnoses which diagnose --merge reads, take together, by the costs below."""
HOST_COST = 600
FACT_COST = 160
"""Bytes of one fact that a host has otherwise than the first."""
VALUE_COST = 130
"""Bytes of one JSON value, and of its copy while it is printed."""
UNREAD_LIMIT = 10_000
"""Files and lines of them that compare tells as not read."""
EXTENDED_LIMIT = 64
"""Files that one recording is made of: itself, and those that it extends, however deep."""
WORD_LIMIT = 64 << 10
"""Characters of a file that holds one value; those of the kernel have at most a page."""
EXCERPT_WHOLE = 4 << 20
"""Bytes of a text that diagnose reads whole; of a longer one it keeps the head, the tail and the complaints."""
EXCERPT_LINES = 40_000
"""Lines that are kept of a longer text."""
BUDGET_LIMIT = 192 << 20
"""Bytes that the texts and dumps of one diagnosis take together, by the costs below; they were measured (docs/input-limits.md)."""
TEXT_BUDGET = 64 << 20
"""Of these, what one text takes at most: 4 MiB whole, if its lines have 20 characters."""
LEAST_BUDGET = 16 << 10
"""What each text gets however little is left: some fifty lines. 4,096 texts take 64 MiB."""
LINE_COST = 300
"""Bytes that a line takes beside its characters."""
SYMPTOM_COST = 700
SNAPSHOT_COST = 64 << 10
"""Bytes of what a text tells of one host."""
ENTRY_COST = 100
"""Bytes of one collective in a dump of the flight recorder."""
SOURCES_LIMIT = 4096
"""Texts that one diagnosis reads: files of directories and members of archives."""


def values_in(document: bytes) -> int:
    """Return how many values a JSON document has at most, by its commas and brackets.

    >>> values_in(b'{"a": [1, 2], "b": {}}')
    5
    """
    return sum(map(document.count, (b",", b"[", b"{")))


def document_cost(document: bytes) -> int:
    """Return how many bytes of HOSTS_BUDGET a document takes that is kept as it is, and printed again."""
    return HOST_COST + 6 * len(document) + VALUE_COST * values_in(document)
