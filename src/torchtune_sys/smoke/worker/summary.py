"""What a worker without a driver prints at its end."""

from __future__ import annotations

import json
from typing import Any, Dict, List

import torch

from torchtune_sys.smoke.worker.agreement import word_of
from torchtune_sys.smoke.worker.context import RankContext
from torchtune_sys.smoke.worker.stages.rendezvous import EXCHANGE_S

_WORST = ("fail", "unknown", "pass", "na")


def gather(here: RankContext, kept: List[Dict[str, Any]]) -> List[List[Dict[str, Any]]]:
    """Every rank's events, on rank 0; on the others, and where the ranks lost each other, this rank's own."""
    if here.store is None or here.broken or here.world == 1:
        return [kept]
    here.store.set("kept/%d" % here.rank, json.dumps(kept))  # torch's own exchange of objects takes NumPy
    if here.rank != 0:
        return [kept]
    return [json.loads(word_of(here, "kept/%d" % rank, rank, EXCHANGE_S)) for rank in range(here.world)]


def summarize(here: RankContext, everyone: List[List[Dict[str, Any]]]) -> int:
    """Print the stages (on rank 0; elsewhere only what this rank alone knows) and return the exit status: 0, 1 or 3."""
    if here.rank == 0:
        worst = print_stages(everyone, here.world)
        about = on_which_gpus(everyone) or "on the CPU: nothing about GPUs was verified"
        print("smoke test: %s, %d rank(s), torch %s, %s" % (worst, here.world, torch.__version__, about))
    elif here.broken:
        for event in (end for end in here_ends(everyone) if end["verdict"] == "fail"):
            print_end(event, "rank %d: %s" % (here.rank, event["seen"]))
    own = {event["verdict"] for event in here_ends(everyone)}
    return 1 if "fail" in own else 3 if "unknown" in own else 0


def print_stages(everyone: List[List[Dict[str, Any]]], world: int) -> str:
    """Print each stage as its worst rank ended it, and return the worst verdict of all."""
    stages: Dict[str, List[Dict[str, Any]]] = {}
    figures: Dict[str, List[str]] = {}
    for number, events in enumerate(everyone):
        for event in events:
            if event["event"] == "end":
                stages.setdefault(event["stage"], []).append({"rank": number, **event})
            elif event["event"] == "measure" and number == 0:
                figures.setdefault(event["stage"], []).append("%s %.4g %s" % (event["name"], event["value"], event["unit"]))
    worst = "pass"
    for name, ends in stages.items():
        first = min(ends, key=lambda end: _WORST.index(end["verdict"]))
        worst = min(worst, first["verdict"], key=_WORST.index)
        shown = figures.get(name, []) if first["verdict"] == "pass" else []
        rank = "rank %d: " % first["rank"] if first["verdict"] == "fail" and world > 1 else ""
        print_end(first, rank + "; ".join(filter(None, [first.get("seen", "")] + shown)))
        if first["verdict"] == "fail" and first.get("remedy"):
            print("%36s%s" % ("", first["remedy"]))
    return worst


def print_end(end: Dict[str, Any], words: str) -> None:
    """Print the line of a stage on one rank."""
    cause = " [%s]" % end["cause"] if end.get("cause") else ""
    print("%-8s%-20s%6.1f s  %s%s" % (end["verdict"], end["stage"], end["seconds"], words, cause))


def on_which_gpus(everyone: List[List[Dict[str, Any]]]) -> str:
    """As many as the ranks ran on, and as many as they saw; "" where there was none.

    >>> one = {"event": "about", "host": "a", "device": "GPU 0", "gpu": "H200", "uuid": "", "gpus": 8}
    >>> on_which_gpus([[one]]), on_which_gpus([[one], [{**one, "host": "b"}]]), on_which_gpus([[{**one, "gpus": 1}]])
    ('on 1 of 8 GPUs', 'on 2 of 16 GPUs', 'on 1 GPU(s)')
    """
    used = set()
    seen: Dict[str, int] = {}
    for event in (event for events in everyone for event in events if event["event"] == "about" and event.get("gpu")):
        used.add((event["host"], event["uuid"] or event["device"]))
        seen[event["host"]] = max(seen.get(event["host"], 0), event["gpus"])
    there = sum(seen.values())
    return "on %d of %d GPUs" % (len(used), there) if len(used) < there else "on %d GPU(s)" % len(used) if used else ""


def here_ends(everyone: List[List[Dict[str, Any]]]) -> List[Dict[str, Any]]:
    return [event for events in everyone for event in events if event["event"] == "end"]
