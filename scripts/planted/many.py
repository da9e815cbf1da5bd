"""Many ranks of job.py, or of SCRIPT, from one Python, which imports torch once: ``many.py RANKS HOW RANK [HEAD]``.

HEAD stands before each line of a rank, {} in it is the rank's number; where it begins with ``/`` it is the rank's file. With HOW ``absent`` RANK is not started.
"""

import os
import runpy
import signal
import sys
import threading
import time

import torch  # noqa: F401  (the ranks have it)

RANKS, HOW, WHO = int(sys.argv[1]), sys.argv[2], sys.argv[3]
HEAD = sys.argv[4] if len(sys.argv) > 4 else ""
JOB = os.environ.get("SCRIPT") or os.path.join(os.path.dirname(os.path.abspath(__file__)), "job.py")


def started(rank):
    """The rank's process, and what it prints."""
    out, into = os.pipe()
    child = os.fork()
    if child:
        os.close(into)
        return child, out
    if HEAD.startswith("/"):
        into = os.open(HEAD.format(rank), os.O_WRONLY | os.O_CREAT, 0o644)
    if HEAD:
        os.dup2(into, 1)
        os.dup2(into, 2)
    os.environ.update(
        RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(RANKS), MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"]
    )
    sys.argv = [JOB, HOW, WHO]
    try:
        runpy.run_path(JOB, run_name="__main__")
        os._exit(0)
    except SystemExit:
        os._exit(0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)


def tells(rank, out):
    for line in os.fdopen(out, errors="replace"):
        sys.stdout.write(HEAD.format(rank) + line)
        sys.stdout.flush()


def main():
    children = [(rank, *started(rank)) for rank in range(RANKS) if HOW != "absent" or rank != int(WHO)]
    for rank, _, out in children:
        threading.Thread(target=tells, args=(rank, out), daemon=True).start()
    left = {child for _, child, _ in children}
    ends = time.monotonic() + float(os.environ.get("JOB_LIMIT", "50"))
    while left and time.monotonic() < ends:
        left = {child for child in left if os.waitpid(child, os.WNOHANG) == (0, 0)}
        time.sleep(0.1)
    for child in left:
        os.kill(child, signal.SIGKILL)
    time.sleep(0.5)
    os._exit(1)


main()
