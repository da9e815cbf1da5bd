"""Two runs of pytest at once: ``side_by_side.py ARGS… --beside ARGS…``.

The first one's output is shown as it comes, the second's is kept and shown whole once both are through; the status is that of the
first which failed. The second has the lower priority. Ctrl-C and SIGTERM end both.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO

PYTEST = [sys.executable, "-m", "pytest"]


def main(argv: Sequence[str]) -> int:
    at = argv.index("--beside")
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell without job control has its background ignore it
    with tempfile.TemporaryFile() as kept:
        # In a session of its own: a terminal's Ctrl-C reaches the first run by itself, and twice would cut its cleaning up short.
        beside = subprocess.Popen(
            ["nice", "-n", "10", *PYTEST, *argv[at + 1 :]], stdout=kept, stderr=subprocess.STDOUT, start_new_session=True
        )
        front = subprocess.Popen([*PYTEST, *argv[:at]])
        try:
            statuses = [front.wait(), beside.wait()]
        except BaseException as error:
            if not isinstance(error, KeyboardInterrupt) or not any(map(os.isatty, (0, 1, 2))):
                front.send_signal(signal.SIGINT)
            beside.send_signal(signal.SIGINT)
            statuses = [130, *_ends(front, beside)]
        _show(kept)
    return next((abs(status) for status in statuses if status), 0)


def _interrupt(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def _ends(*runs: subprocess.Popen[bytes]) -> list[int]:
    with contextlib.suppress(KeyboardInterrupt):  # once more: at once
        return [run.wait() for run in runs]
    for run in runs:
        run.kill()
    return [run.wait() for run in runs]


def _show(kept: IO[bytes]) -> None:
    kept.seek(0)
    sys.stdout.flush()
    shutil.copyfileobj(kept, sys.stdout.buffer)
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
