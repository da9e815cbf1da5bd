"""What whole commands take of memory."""

from __future__ import annotations

import subprocess
import sys


def memory_mib(*words: str) -> int:
    """The most that the command, or a child of it, takes."""
    code = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], capture_output=True); "
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    argv = [sys.executable, "-m", "torchtune_sys", *words, "--timeout", "60"]
    done = subprocess.run([sys.executable, "-c", code, *argv], capture_output=True, text=True, timeout=200, check=True)
    return int(done.stdout) >> 10
