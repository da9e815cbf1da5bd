"""Run the programs of a site-checks directory, and report how each ended."""

from __future__ import annotations

import os
import stat

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.trust import distrust, steps


def programs(folder: str) -> tuple[list[str], dict[str, str]]:
    """Return the names of the executables in ``folder``, and why others are not run, by name.

    Hidden files, copies of an editor and what is no executable file are passed over. Root runs nothing that others could have written.
    Raises UnreadableInput.
    """
    place = os.path.abspath(folder)
    try:
        steps(place)
        names = sorted(name for name in os.listdir(place) if not name.startswith(".") and not name.endswith("~"))
    except OSError as error:
        raise UnreadableInput(f"{folder}: {error.strerror}", "name a directory of programs") from None
    found, refused = [], {}
    for name in names:
        try:
            info = os.stat(os.path.join(place, name))
        except OSError as error:
            refused[name] = str(error.strerror)
            continue
        if not stat.S_ISREG(info.st_mode) or not info.st_mode & 0o111:
            continue
        reason = distrust(os.path.join(place, name)) if os.geteuid() == 0 else ""
        if reason:
            refused[name] = f"not run as root: {reason}"
        else:
            found.append(name)
    return found, refused
