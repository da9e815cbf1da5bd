"""The first stage: importing torch, told like any other."""

from __future__ import annotations

import os
import sys
import time

from torchtune_sys.smoke.worker.channel import channel, last_lines

IMPORT_DEADLINE_S = 120.0
"""Cold imports from a network file system have been seen to take more than a minute (dstack, NFS home directories)."""


def _hiding() -> str:
    """A file of one's own (random.py, types.py) that lies in front of the standard library's breaks what imports it."""
    names, home = getattr(sys, "stdlib_module_names", ()), os.path.dirname(os.__file__)  # Python 3.10
    places = [getattr(module, "__file__", None) for name, module in [*sys.modules.items()] if name in names]
    strange = [place for place in places if place and not place.startswith(home)]
    return "; %s hides a module of the standard library" % strange[0] if strange else ""


_import_started = time.monotonic()
channel.tell("begin", stage="import", deadline_s=IMPORT_DEADLINE_S)
try:
    import torch

    if not hasattr(torch, "Tensor"):
        raise ImportError(
            "no PyTorch, but another module named torch: %s" % (getattr(torch, "__file__", "") or [*torch.__path__])
        )
except BaseException as error:
    _import_error = "%s: %s%s" % (type(error).__name__, error, _hiding())
    channel.tell(
        "end",
        stage="import",
        verdict="fail",
        cause="",
        seen=_import_error,
        remedy="",
        trace=last_lines(error),
        seconds=time.monotonic() - _import_started,
    )
    if channel.driven:
        channel.tell("bye")
        os._exit(1)
    sys.exit("the smoke test cannot import torch in %s: %s" % (sys.executable, _import_error))
IMPORT_S = time.monotonic() - _import_started
assert torch is not None
