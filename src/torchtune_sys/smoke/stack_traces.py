"""Parse the stack traces that faulthandler writes."""

from __future__ import annotations

import re

_SCRIPT = re.compile(r"/smoke\.py$|^/proc/(self|\d+)/fd/\d+$")
"""The worker, as somebody named its file, or as the driver hands it over: by a descriptor."""
_FRAME = re.compile(r'^\s+File "(?P<file>[^"]*)", line (?P<line>\d+|\?\?\?) in (?P<function>.+)$')
_EXCHANGES = ("/torch/distributed/", "/torch/nn/parallel/", "/torch/autograd/graph.py")
_STATES = {"T": "stopped", "t": "stopped by a debugger", "D": "blocked in the kernel", "Z": "dead", "": "gone"}


def place(rank: int, pid: int, host: str, device: str, stage: str, state: str, stack: str) -> str:
    """Return one rank's line of a report of a hang."""
    who = f"rank {rank} (pid {pid} on {host}{', ' + device if device else ''})"
    what = _STATES.get(state, "")
    where = innermost(stack)
    return f"{who}: {what + ' ' if what else ''}in stage {stage or 'import'}" + (f", {where}" if where else "")


def innermost(stack: str) -> str:
    """Return the innermost line of the worker, and the innermost of all where that is another.

    >>> innermost('''Current thread 0x00007f (most recent call first):
    ...   File "/x/torch/distributed/distributed_c10d.py", line 3025 in all_reduce
    ...   File "/tmp/smoke.py", line 812 in gradients_agree
    ...   File "/tmp/smoke.py", line 900 in main
    ... ''')
    'smoke.py:812 in gradients_agree, below it distributed_c10d.py:3025 in all_reduce'
    >>> innermost("")
    ''
    """
    frames = _main_thread(stack)
    own = next((frame for frame in frames if _SCRIPT.search(frame[0])), None)
    if not frames:
        return ""
    if own is None or own == frames[0]:
        return _stacks(frames[0])
    return f"{_stacks(own)}, below it {_stacks(frames[0])}"


def waits_for_others(stack: str) -> bool:
    """Return whether a rank is in an exchange with others, or at the end of one: a backward pass of DDP.

    >>> waits_for_others('Current thread 0x7f (most recent call first):\\n  File "/x/torch/distributed/c10d.py", line 3 in wait\\n')
    True
    """
    frames = _main_thread(stack)
    file, _line, function = frames[0] if frames else ("", "", "")
    return any(place in file for place in _EXCHANGES) or function == "word_of"


def _main_thread(stack: str) -> list[tuple[str, str, str]]:
    """Return the frames of the thread that runs the worker's stages, innermost first; of the last dump."""
    threads: list[list[tuple[str, str, str]]] = []
    for line in stack.splitlines():
        found = _FRAME.match(line)
        if "most recent call first" in line:
            threads.append([])
        elif found and threads:
            threads[-1].append((found["file"], found["line"], found["function"]))
    own = [frames for frames in threads if any(_SCRIPT.search(file) for file, _line, _function in frames)]
    return (own or threads or [[]])[-1]


def _stacks(frame: tuple[str, str, str]) -> str:
    file = "smoke.py" if _SCRIPT.search(frame[0]) else frame[0].rpartition("/")[2]
    return f"{file}:{frame[1]} in {frame[2]}"
