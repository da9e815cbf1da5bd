"""The tool on a recorded host that lies there as a tree: what changes touch is read from the tree, all else from the recording.

python recorded_tool.py RECORDING COMMAND…
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from torchtune_sys.host.recorded import RecordedHost

LAID = "laid"
"""Of the recording: the paths that lie in the tree, whether there is a file or not."""


class TreeAndRecording(RecordedHost):
    def __init__(self, recording: dict[str, Any]) -> None:
        super().__init__(recording, "recording")
        self._laid = frozenset(recording[LAID])

    def text(self, path: str) -> Any:
        place = self._resolve(path)
        recorded = super().text(path)
        if place not in self._laid or not os.path.isfile(place):
            return recorded
        present = Path(place).read_text(encoding="utf-8")
        return chosen(recorded, present) if isinstance(recorded, str) and "[" in recorded else present


def chosen(offered: str, present: str) -> str:
    """A file that offers a choice, with what the plain file of the tree holds as what is chosen."""
    words = offered.replace("[", "").replace("]", "").split()
    return " ".join(f"[{word}]" if word == present.strip() else word for word in words) + "\n"


def main(recording: str, *words: str) -> int:
    from torchtune_sys.cli import take_snapshot

    host = TreeAndRecording(json.loads(Path(recording).read_text(encoding="utf-8")))
    vars(take_snapshot)["open_input"] = lambda *_given, **_more: host
    from torchtune_sys.cli.main import run

    return run(words)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
