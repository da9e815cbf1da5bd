"""``torchtune-sys`` and ``python -m torchtune_sys``: an interrupt that comes while the command line loads ends the process quietly.

Nothing is imported at the top but what cannot be taken from the caller's PYTHONPATH or working directory.
"""

import os
import sys


def main() -> None:
    """Run the command line."""
    try:
        _run()
    except MemoryError:
        # Too little even to say so as usual. Python's own status for that is 1, which says that something was found.
        os.write(2, b"torchtune-sys: there is not enough memory for this; raise the limit on memory (ulimit -v)\n")
        os._exit(3)
    except ImportError as error:  # of what every error is told with, too
        _tell_incomplete(error)


def _tell_incomplete(error: ImportError) -> None:
    """Say what cannot be loaded: a package is missing, or made for another Python, processor or C library."""
    from torchtune_sys.host.isolation import session
    from torchtune_sys.preflight.hooks import keeps_in_service

    env = session()
    if "--debug" in sys.argv or env.get("TORCHTUNE_SYS_DEBUG"):
        raise error
    home = env.get("PYTHONHOME", "")
    todo = (
        f"PYTHONHOME={home} sends each Python there for its own library: unset PYTHONHOME"
        if home
        else f"reinstall it for {sys.executable}"
    )
    words = f"torchtune-sys: this installation is incomplete: {error}\n  {todo}\n"
    os.write(2, words.encode("utf-8", "backslashreplace"))
    os._exit(0 if keeps_in_service(sys.argv[1:], env) else 4)


def _run() -> None:
    # Built in. The module signal imports enum and collections first, and an interrupt during that would show a traceback.
    import _signal  # type: ignore[import-not-found]

    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:  # else it is ignored, as for a job in the background
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    from torchtune_sys.host.isolation import hear_of_children, isolate

    isolate()
    hear_of_children()
    from torchtune_sys.host import own_modules

    own_modules.find()
    import gc

    gc.disable()  # a run is over before a collection would pay for itself
    # Only msgspec asks for it, and takes typing's own where it is not there: beside a torch it is, and costs as much as the rest of msgspec.
    sys.modules.setdefault("typing_extensions", None)  # type: ignore[arg-type]
    from torchtune_sys.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
