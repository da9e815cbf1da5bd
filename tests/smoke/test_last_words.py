"""What ranks say reaches whoever started them, also where all have ended before anybody listened."""

from __future__ import annotations

import os
import sys
import time

from torchtune_sys.host.children.rank_processes import Event, Exited, RankMessage, RankProcesses

_SAYS = "import os, socket\ns = socket.socket(socket.AF_UNIX); s.connect('\\0' + os.environ['S'])\ns.sendall(b'{\"event\": \"failed\"}\\n')\n"


def test_the_last_words_of_a_child_that_has_ended_are_read() -> None:
    events: list[Event] = []
    with RankProcesses((sys.executable, "-c", _SAYS), dict(os.environ), "/", "S") as ranks:
        until_s = time.monotonic() + 60
        while ranks.state(ranks.launcher) != "Z" and time.monotonic() < until_s:
            time.sleep(0.01)
        while not any(isinstance(event, Exited) for event in events):
            events += ranks.wait(1)
    assert [event.fields for event in events if isinstance(event, RankMessage)] == [{"event": "failed"}]
