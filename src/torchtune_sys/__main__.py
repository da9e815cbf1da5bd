"""``torchtune-sys`` and ``python -m torchtune_sys``: an interrupt that comes while the command line loads ends the process quietly.

Nothing is imported at the top but what cannot be taken from the caller's PYTHONPATH or working directory.
"""

import os

from torchtune_sys.host.isolation import isolate


def main() -> None:
    """Run the command line."""
    try:
        _run()
    except MemoryError:
        # Too little even to say so as usual. Python's own status for that is 1, which says that something was found.
        os.write(2, b"torchtune-sys: there is not enough memory for this; raise the limit on memory (ulimit -v)\n")
        os._exit(3)


def _run() -> None:
    isolate()
    import gc

    gc.disable()  # a run is over before a collection would pay for itself
    import signal

    kept = signal.getsignal(signal.SIGINT)
    if kept is signal.default_int_handler:  # else it is ignored, as for a job in the background
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from torchtune_sys.cli.main import main as run

    signal.signal(signal.SIGINT, kept)
    run()


if __name__ == "__main__":
    main()
