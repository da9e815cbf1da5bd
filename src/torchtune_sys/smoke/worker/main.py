"""The worker's entry: starts ranks, or is one of them and goes through the stages."""

from __future__ import annotations

import argparse
import atexit
import contextlib
import faulthandler
import functools
import json
import os
import re
import shutil
import sys
import tempfile
import time
from typing import Any, Dict, List, Optional, Sequence

import torch

from torchtune_sys.host.trust import distrust
from torchtune_sys.smoke.worker.channel import channel, environment_number, last_lines, launching
from torchtune_sys.smoke.worker.context import (
    DEFAULT,
    Inconclusive,
    RankContext,
    Skipped,
    StageFailed,
    countable_gpus,
)
from torchtune_sys.smoke.worker.identity import about, rank_from_scheduler, versions_agree
from torchtune_sys.smoke.worker.launching import launch
from torchtune_sys.smoke.worker.measures import patience
from torchtune_sys.smoke.worker.oom_kills import MORE_MEMORY, killed_for_memory, kills_of_cgroup, memory_kills, say_why_when_ended
from torchtune_sys.smoke.worker.rendezvous_store import MEETING_S, undecided_by_strangers
from torchtune_sys.smoke.worker.stage_in_copy import StageBeside, ToldEnd, has_room_beside
from torchtune_sys.smoke.worker.stages.container import container_is_as_promised, promises_in
from torchtune_sys.smoke.worker.stages.import_torch import IMPORT_S, import_what_training_imports, no_address_space
from torchtune_sys.smoke.worker.stages.process_settings import what_lowers_products
from torchtune_sys.smoke.worker.stages.process_state import threads_that_stay
from torchtune_sys.smoke.worker.stages.rendezvous import check_in, part
from torchtune_sys.smoke.worker.stages.stress import RepeatedWork
from torchtune_sys.smoke.worker.summary import gather, summarize
from torchtune_sys.smoke.worker.table import LEVELS, STAGES, Stage
from torchtune_sys.smoke.worker.worker_reasons import children_tell_again

_BESIDE = "compile"
_SHARE_OF_ALLOCATIONS = 0.5
"""Of the address space: what one allocation asks for at once may be as much."""
_LEAST_STAGES = 8
"""Of so many some train, and beside so many another has its time."""
_COMPUTED = (
    "-wrong",
    "-differs",
    "-differently",
    "-diverges",
    "-not-finite",
    "-changes-step",
    "-drift",
    "-does-not-learn",
    "-corrupts",
    "-damaged",
)
"""How causes of what was computed end."""
_OF_PRODUCTS = (
    "gemm-wrong",
    "convolution-wrong",
    "layer-wrong",
    "device-computes-wrong",
    "fsdp-step-wrong",
    "amp-diverges",
    "compiled-differs",
)
_OTHER_NUMBERS = re.compile("float64|float16|int")
_ROUNDS_OF_DOUBT = 20
_TIMED = ("container", "device", "gemm", "memory", "copy", "conv", "stress")
"""What is timed, and compared with earlier runs, has the CPUs to itself."""
_LAST_THREADS_S = 3.0
_AS_ERROR = " (a warning, of which this Python makes an error: PYTHONWARNINGS=%s, -W, warnings.simplefilter)"
_ASKING_S = 0.5
"""For the driver to ask the others where they are, before they notice that this rank leaves."""


def arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Run a short training and check everything that training needs.", allow_abbrev=False
    )
    parser.add_argument("--level", choices=LEVELS, default=DEFAULT)
    parser.add_argument("--stages", default="", help="names, separated by commas; default: all of the level")
    parser.add_argument("--nproc-per-node", type=int, default=0, help="ranks to start if there is no launcher; GPUs, else 2")
    parser.add_argument("--world", type=int, default=0, help="required number of ranks in the whole job; 0: any")
    parser.add_argument("--gpus", type=int, default=0, help="required number of GPUs visible to each rank; 0: any")
    parser.add_argument("--cpus", type=int, default=0, help="CPUs that the ranks of a host may use between them; 0: not known")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--backend", choices=("gloo", "nccl"), default=None)
    parser.add_argument("--master-port", type=int, default=0, help="meet at this port of the loopback, too")
    parser.add_argument("--scratch", default="", help="where checkpoints and caches go, seen by all ranks of a host")
    parser.add_argument("--expect", default="{}", help="JSON: plausible rates, by GPU, stage and figure")
    parser.add_argument(
        "--promised", type=promises_in, default=[], help="what a container was to be started with: shm=8192,gpus=8"
    )
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def started_by_hand(asked: argparse.Namespace) -> int:
    """Start the ranks of this host; return the exit status."""
    ranks = asked.nproc_per_node or (countable_gpus() if asked.device != "cpu" and torch.cuda.is_available() else 0)
    ranks = ranks if ranks > 1 else asked.nproc_per_node or 2
    words = [word for word in sys.argv[1:] if word != "--launch"]
    if asked.scratch:
        return launch(ranks, asked.master_port, words)
    scratch = tempfile.mkdtemp(prefix="smoke-", dir=_temporary())
    try:
        return launch(ranks, asked.master_port, [*words, "--scratch", scratch])
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def perform(here: RankContext, stage: Stage) -> None:
    """Run one stage and tell how it ended; what it raises never ends the rank."""
    here.stage, here.patience_s = stage.name, 0.8 * stage.deadline_s * patience()
    channel.tell("begin", stage=stage.name, deadline_s=stage.deadline_s)
    if not channel.driven:
        waits_s = MEETING_S if stage.name == "rendezvous" else 0.0
        faulthandler.dump_traceback_later(stage.deadline_s * 2 * patience() + waits_s, exit=True)
    started = time.monotonic()
    ended = outcome(here, stage)
    here.verdicts[stage.name] = ended["verdict"]
    channel.tell("end", stage=stage.name, **{"seconds": time.monotonic() - started, **ended})
    if not channel.driven:
        faulthandler.cancel_dump_traceback_later()
        if ended["verdict"] == "fail":
            say_now(here, ended)


def outcome(here: RankContext, stage: Stage) -> Dict[str, Any]:
    """Run one stage and return how it ended; what it raises never ends the rank."""
    kills = memory_kills()
    children_tell_again()
    ended: Dict[str, Any] = {"verdict": "pass", "cause": "", "seen": "", "remedy": "", "trace": ""}
    try:
        _run(here, stage)
        ended["seen"] = here.remark
    except ToldEnd as error:
        ended.update(error.ended)
    except Skipped as error:
        ended.update(verdict="na", seen=str(error))
    except Inconclusive as error:
        ended.update(verdict="unknown", cause=error.cause, seen=str(error), remedy=error.remedy)
    except StageFailed as error:
        ended.update(verdict="fail", cause=error.cause, seen=error.seen, remedy=error.remedy)
        _tell_of_a_setting(here, ended)
        _tell_of_chance(here, ended)
    except Exception as error:
        seen = "%s: %s%s" % (type(error).__name__, error, _files_left(error, here.scratch))
        if isinstance(error, MemoryError) or "llocate memory" in str(error):
            limited = no_address_space(_SHARE_OF_ALLOCATIONS)
            seen, ended["remedy"] = seen + limited, limited.rpartition("(")[2].replace(")", " unlimited")
        if isinstance(error, Warning):
            ended["cause"] = "warnings-are-errors"
            seen += _AS_ERROR % os.environ.get("PYTHONWARNINGS", "")
        ended.update(verdict="fail", seen=seen, trace=last_lines(error))
        here.lost_device = not here.device_works()
        here.broken = here.broken or stage.together or here.lost_device
        killed = "" if channel.driven and stage.together else killed_for_memory(kills)  # the driver knows which rank it was
        if killed:
            ended.update(cause="host-memory-oom", seen="%s; %s" % (ended["seen"], killed), remedy=MORE_MEMORY)
    if ended["verdict"] == "fail" and _is_gone(here.scratch):
        seen = "%s; %s, where the ranks keep their files, was removed while they ran" % (ended["seen"], here.scratch)
        ended.update(cause="temporary-files-removed", seen=seen, remedy="")
    if ended["verdict"] == "fail" and stage.together and not (stage.name == "rendezvous" and ended["cause"]):
        undecided_by_strangers(here, ended)
    return ended


def _run(here: RankContext, stage: Stage) -> None:
    here.remark, here.doubt = "", None
    if stage.compares and here.world == 1:
        raise Skipped("only one rank: there is no other to compare it with")
    stage.run(here)
    if here.doubt is not None:
        raise here.doubt


def _tell_of_a_setting(here: RankContext, ended: Dict[str, Any]) -> None:
    """Blame what lets products of float32 have fewer bits for those that do: a pre-flight drains the host of a device that computes wrongly."""
    lowered = what_lowers_products(here) if ended["cause"] in _OF_PRODUCTS and not _OTHER_NUMBERS.search(ended["seen"]) else ""
    if lowered:
        seen = "%s: products of float32 may be computed with fewer bits (%s)" % (ended["seen"], lowered)
        ended.update(cause="torch-setting-changed", seen=seen, remedy="")


def _tell_of_chance(here: RankContext, ended: Dict[str, Any]) -> None:
    """Say, where something was computed wrongly, that the rank computes other bits when it repeats the same work: a core is wrong now and then."""
    told = ""
    if here.stage == "stress" or not ended["cause"].endswith(_COMPUTED):
        return
    with contextlib.suppress(Exception):  # nothing works any more: the stage has said what was wrong
        told = RepeatedWork(here).again(_ROUNDS_OF_DOUBT)
    if told:
        ended["seen"] += "; rank %d computes other bits when work is repeated: %s" % (here.rank, told)


def _is_gone(place: str) -> bool:
    try:
        os.stat(place)
    except FileNotFoundError:
        return True
    except OSError:  # it cannot be asked
        return False
    return False


def _files_left(error: Exception, place: str) -> str:
    """Return that no file can be made where there is room for bytes, "" else: the kernel has one word for both (ENOSPC)."""
    if "No usable temporary directory" in str(error):
        return _why_no_file(place)
    if "No space left" not in str(error):
        return ""
    named = getattr(error, "filename", None)
    with contextlib.suppress(OSError):
        found = os.statvfs(os.path.dirname(named) if isinstance(named, str) else place)
        if found.f_files and not found.f_favail and found.f_bavail:
            return " (there is room for %d MB, but for no more files: all %d inodes are taken)" % (
                found.f_bavail * found.f_frsize >> 20,
                found.f_files,
            )
    return ""


def _why_no_file(place: str) -> str:
    """Return what the system says to a file that is written there, where that fails: tempfile tries many places, and keeps the reasons to itself."""
    path = os.path.join(place, "trial-%d" % os.getpid())
    try:
        with open(path, "wb", buffering=0) as file:
            file.write(b"trial")
    except OSError as error:
        return "; in %s: %s" % (place, error.strerror)
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
    return ""


def say_now(here: RankContext, ended: Dict[str, str]) -> None:
    """Say a result at once: the table comes at the end, which a rank need not reach: a launcher ends all when one has failed, and so does the kernel when memory
    or /dev/shm is used up."""
    cause = " [%s]" % ended["cause"] if ended["cause"] else ""
    remedy = "\n    %s" % ended["remedy"] if ended["remedy"] else ""
    sys.stderr.write("rank %d: %s failed: %s%s%s\n" % (here.rank, here.stage, ended["seen"], cause, remedy))
    sys.stderr.flush()


def chosen(asked: argparse.Namespace) -> List[Stage]:
    """Return the stages to run: the device is always looked at; rendezvous comes with whatever needs it, the container first where something was promised."""
    container = functools.partial(container_is_as_promised, asked.promised)
    first = [Stage("container", container, 30.0, once=True)] if asked.promised else []
    names = set(filter(None, asked.stages.split(",")))
    unknown = names - {"import", *(stage.name for stage in STAGES)}
    if unknown:
        sys.exit("no stage is called %s; there are: %s" % (", ".join(sorted(unknown)), ", ".join(stage.name for stage in STAGES)))
    if not names:
        return first + [stage for stage in STAGES if LEVELS.index(stage.level) <= LEVELS.index(asked.level)]
    names.add("device")  # no GPU is overlooked, whatever else is asked
    if any(stage.together for stage in STAGES if stage.name in names):
        names.add("rendezvous")
    return first + [stage for stage in STAGES if stage.name in names]


def _begun_beside(here: RankContext, stages: Sequence[Stage]) -> Optional[StageBeside]:
    """Return the copy of this process that goes through a stage beside the others; None where it has no room, or nothing to be beside."""
    wanted = [stage for stage in stages if stage.name == _BESIDE and here.local_rank == 0]
    if not wanted or len(stages) < _LEAST_STAGES or not has_room_beside(here):
        return None

    def alone() -> Dict[str, Any]:
        here.stage = wanted[0].name
        return outcome(here, wanted[0])

    return StageBeside(alone)


def _take_over(beside: StageBeside, stage: Stage, here: RankContext) -> None:
    """Tell what the copy found; where it ended without a word, go through its stage here: then it is known of which process that is true."""
    told = beside.await_end()
    if told is None:
        stage.run(here)
        return
    for event in told[:-1]:
        channel.tell(**{**event, "stage": stage.name})
    raise ToldEnd(told[-1])


def go_through(here: RankContext, stages: Sequence[Stage]) -> None:
    beside = _begun_beside(here, stages)
    for stage in stages:
        if beside is not None and stage.name not in _TIMED:
            beside.begin()
        if stage.once and here.local_rank != 0:
            continue
        if stage.together and here.broken:
            met = not here.lacks("rendezvous")
            if channel.driven and met:
                time.sleep(_ASKING_S)
                return  # the driver starts new ranks for the rest
            seen = "the ranks lost each other before" if met else "the ranks did not meet"
            channel.tell("end", stage=stage.name, verdict="unknown", seen=seen, seconds=0.0)
            continue
        perform(
            here, stage._replace(run=functools.partial(_take_over, beside, stage)) if beside and stage.name == _BESIDE else stage
        )
        if here.lost_device and channel.driven:
            time.sleep(_ASKING_S)
            os._exit(1)  # without good-bye: the driver starts new ranks for the rest, whose device may work again
        if here.lost_device:
            break
        if stage.name == "device" and here.device_wish == "cuda" and here.kind != "cuda":
            break  # the stage "device" has said so: training on the CPU is no answer to who asks for a GPU


def _temporary() -> str:
    """Return the directory for temporary files, unless somebody else could put others in their place."""
    named = [os.path.abspath(place) for place in map(os.environ.get, ("TMPDIR", "TEMP", "TMP")) if place]
    for place in (*named, "/tmp", "/var/tmp", "/dev/shm"):
        if os.access(place, os.W_OK | os.X_OK) and not distrust(place, frozenset((os.geteuid(),)), may_be_shared=True):
            return place
    sys.exit("the smoke test has no directory for temporary files where nobody else can replace them: --scratch names one")


def _tell_who_stays(here: RankContext, plan: Sequence[str]) -> None:
    """Tell the threads that Python would await now: a rank that has them does not end, and holds its host."""
    until = time.monotonic() + _LAST_THREADS_S
    while threads_that_stay() and time.monotonic() < until:
        time.sleep(0.05)
    staying = threads_that_stay()
    if staying:
        stage = "rendezvous" if "rendezvous" in plan else "device"
        seen = "rank %d has %d thread(s) left that Python awaits before it ends, though all stages are through: %s"
        words = seen % (here.rank, len(staying), ", ".join(staying[:3]))
        channel.tell("end", stage=stage, verdict="fail", cause="rank-does-not-end", seen=words, seconds=0.0)


def _here(asked: argparse.Namespace) -> RankContext:
    """Return this rank's context, or end the rank where its GPU cannot be had (lost, exclusively another's, hidden): the stage "device" says so."""
    try:
        return RankContext(
            level=asked.level,
            scratch=asked.scratch or _temporary(),
            device=asked.device,
            backend=asked.backend or "",
            expected=json.loads(asked.expect),
        )
    except RuntimeError as error:
        seen = "%s: %s" % (type(error).__name__, error)
        channel.tell("end", stage="device", verdict="fail", seen=seen, seconds=0.0, trace=last_lines(error))
        sys.exit("the smoke test cannot use the GPU of local rank %s: %s" % (os.environ.get("LOCAL_RANK", "0"), seen))


def main() -> None:
    asked = arguments(sys.argv[1:])
    stages = chosen(asked)
    if launching(sys.argv):
        sys.exit(started_by_hand(asked))
    rank_from_scheduler()
    if not channel.driven:
        say_why_when_ended()
    plan = ["import"] + [stage.name for stage in stages]
    channel.tell("about", stages=plan, torch=torch.__version__, kills=kills_of_cgroup())
    agreed = versions_agree(environment_number("WORLD_SIZE", 1), asked.world)
    import_s = IMPORT_S + (import_what_training_imports() if len(stages) >= _LEAST_STAGES else 0.0)
    channel.tell("end", stage="import", seconds=import_s, **agreed)
    device = next(stage for stage in STAGES if stage.name == "device")
    channel.tell("begin", stage=device.name, deadline_s=device.deadline_s)  # CUDA starts now, and may hang in its driver
    here = _here(asked)
    here.world_wish, here.gpus_wish, here.cpus_wish = asked.world, asked.gpus, asked.cpus
    channel.tell("about", stages=plan, **about(here))
    if any(stage.together for stage in stages):
        check_in(here)
    go_through(here, stages)
    if channel.driven:
        _tell_who_stays(here, plan)
    channel.tell("bye")  # whatever comes now proves nothing any more
    everyone = [] if channel.driven else gather(here, channel.kept)
    part(here)
    status = 0 if channel.driven else summarize(here, everyone)
    sys.stdout.flush()
    sys.stderr.flush()
    if channel.driven:  # the driver sees who stays, and who crashes
        atexit._run_exitfuncs()  # as Python does at the end of a training
    # torch 2.13 with gloo aborts in one of five interpreters that end in the usual way ("terminate called without …").
    os._exit(status)


if __name__ == "__main__":
    main()
