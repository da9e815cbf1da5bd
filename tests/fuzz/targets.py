"""What reads the files of strangers, one function for each kind, with true files to start from.

``tests/fuzz/test_fuzz.py`` changes the files a little and at random; ``scripts/fuzz_readers.py`` does so for as long as one wants,
led by which lines of our code are reached.
"""

from __future__ import annotations

from fuzz import formats, hosts, peers, privileged, runs
from fuzz.target import Target

TARGETS: dict[str, Target] = hosts.TARGETS | runs.TARGETS | peers.TARGETS | privileged.TARGETS | formats.TARGETS
