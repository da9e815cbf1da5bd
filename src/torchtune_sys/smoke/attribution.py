"""Find the cause of a failure: from the stage itself, from its error message, or from how a rank ended."""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

import msgspec

from torchtune_sys.host.children.endings import ended_by
from torchtune_sys.host.live_queries.loader import cut_libraries
from torchtune_sys.host.secrets.filter import brief
from torchtune_sys.model.diagnosis import Confidence
from torchtune_sys.model.rule import Verdict
from torchtune_sys.model.smoke import RankEnd
from torchtune_sys.model.values import known as known_fact
from torchtune_sys.smoke.watch import RunFailure
from torchtune_sys.smoke.worker.oom_kills import MORE_MEMORY

if TYPE_CHECKING:
    from torchtune_sys.diagnosis.known_words import KnownWords

_TEXT_BYTES = 4000
_LINE = 400


_ASKED_TO_END = (signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM)
_BY_ITS_OWN_FAULT = (signal.SIGSEGV, signal.SIGILL, signal.SIGFPE, signal.SIGBUS)
"""Signals by which the kernel ends a process for what it did itself: whatever else was killed for lack of memory meanwhile, it may be another user's."""
_WHO_ENDS = "find out what kills processes here (the kernel log, the scheduler)"
_SILENT = "\nsmoke test: "
"""The last line of ranks that found no driver (worker/summary.py)."""


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    cause: str = ""
    seen: str = ""
    remedy: str = ""
    confidence: Confidence = Confidence.CERTAIN


def of_end(end: RankEnd, stage: str, found: Collection[str], before: Sequence[str] = ()) -> RankEnd:
    """Return an end with its cause. ``found`` are the causes that the rules name on this host, ``before`` those of earlier stages."""
    if end.cause or end.verdict.value != "fail":
        return end
    text = end.seen + "\n" + end.trace
    seen = _sentence(end.seen, stage)
    blame = _of_other_library(text) or _of_broken_connection(text, stage, seen) or of_text(text, stage, found, before)
    seen = blame.seen or seen
    trace = end.trace if seen == end.seen else f"{end.seen}\n{end.trace}"
    return msgspec.structs.replace(
        end, cause=blame.cause, remedy=end.remedy or blame.remedy, seen=seen, trace=trace, confidence=blame.confidence
    )


def _known_words(text: str, stage: str) -> KnownWords | None:
    from torchtune_sys.diagnosis.known_words import known  # a tenth of a second, which a host without a fault need not wait

    return known(text, stage)


def _sentence(text: str, stage: str) -> str:
    """Of an exception that brings a whole report along (a worker's traceback, a compiler's output), the line that says why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        return text.strip()
    whole = _known_words(text, stage)
    telling = next((line for line in lines if whole is not None and _known_words(line, stage) == whole), "")
    return brief(telling or _last_error(text) or lines[0], _LINE)


_CUT = re.compile(r"(/\S{1,512}?\.so[\w.]{0,64}): (?:file too short|cannot read file data|invalid ELF header|ELF load command)")
_TORCHS_OWN = re.compile(r"/torch/|/nvidia/|/site-packages/|/dist-packages/")
_BROKE = re.compile(
    r"(?s)(?:gloo|ProcessGroup|NCCL).{0,400}[Cc]onnection (?:closed|reset) by peer|gloo.{0,400}(?:[Bb]roken pipe|error \S{1,80} Connection timed out)"
)


def _of_other_library(text: str) -> Attribution | None:
    """Return that a damaged library is not torch's: to install torch again mends nothing then."""
    found = _CUT.search(text)
    if found is None or _TORCHS_OWN.search(found.group(1)):
        return None
    return Attribution(cause="library-damaged", remedy=_MEND_LIBRARY.format(found.group(1)))


def _of_broken_connection(text: str, stage: str, seen: str) -> Attribution | None:
    """Return what ranks say that had met and lost each other while none of them ended: a rank that ends is blamed before this is asked."""
    if stage in ("import", "rendezvous") or not _BROKE.search(text):
        return None
    words = "a connection between ranks broke while they used it, and no rank has ended: "
    remedy = "see what ends connections between the ranks' addresses: a firewall or proxy, a full table of connections (dmesg: nf_conntrack), a queue that drops (tc -s qdisc)"
    return Attribution(cause="connection-broken", seen=words + seen, remedy=remedy, confidence=Confidence.LIKELY)


_MEND_LIBRARY = "a whole {0}: install its package again, or leave its directory out of LD_LIBRARY_PATH"
_DAMAGE = ("torch-install-damaged", "rank-crashed")


_WITHOUT_DETAIL = "unset TORCH_DISTRIBUTED_DEBUG"
_MAKING_DDP = re.compile(r"torch/nn/parallel/distributed\.py\"?, line \d+ in _ddp_init_helper")
_DDP_IN_DETAIL = (
    "{}, where DistributedDataParallel is made: over gloo torch itself crashes there under TORCH_DISTRIBUTED_DEBUG=DETAIL"
)


def with_environment(blame: Attribution, stage: str, env: Mapping[str, str], crash: str = "") -> Attribution:
    """Return the cause of a crash with what the ranks' environment has to do with it: a library that is cut short, or DETAIL of torch's own checks, with which each
    collective goes through a wrapper. ``crash`` is what faulthandler wrote: where it ends in making DistributedDataParallel, DETAIL is the cause
    (c10d::Logger::set_env_variables in torch/csrc/distributed/c10d/logger.cpp; a program of ten lines ends by SIGSEGV there, torch 2.13 over gloo), not the host."""
    if stage == "import":
        return _with_cut_library(blame, env.get("LD_LIBRARY_PATH", ""))
    if blame.cause == "rank-crashed" and not blame.remedy and env.get("TORCH_DISTRIBUTED_DEBUG", "").upper() == "DETAIL":
        if not _MAKING_DDP.search(crash):
            return msgspec.structs.replace(blame, remedy=_WITHOUT_DETAIL)
        seen = _DDP_IN_DETAIL.format(blame.seen)
        return Attribution(cause="distributed-debug-detail", seen=seen, remedy=_WITHOUT_DETAIL, confidence=Confidence.LIKELY)
    return blame


def _with_cut_library(blame: Attribution, search_path: str) -> Attribution:
    """Return the cause of a crash while torch was loaded: a library of ``search_path`` (LD_LIBRARY_PATH) that ends before its headers say, if there is one."""
    for folder in filter(None, search_path.split(":")) if blame.cause in _DAMAGE else ():
        for name, size, least in known_fact(cut_libraries(folder, 0.0), []):
            path = f"{folder}/{name}"
            seen = f"{blame.seen}: LD_LIBRARY_PATH has a library that is cut short, {path} ({size} of {least} bytes)"
            return Attribution(cause="library-damaged", seen=seen, remedy=_MEND_LIBRARY.format(path))
    return blame


_LOST = re.compile(r"connection (was )?(closed|reset|refused|aborted)|broken pipe|did not answer|timed? ?out", re.IGNORECASE)


def is_consequence(end: RankEnd) -> bool:
    """Return whether a rank failed only because it lost another."""
    return end.verdict is Verdict.FAIL and not end.cause and _LOST.search(end.seen) is not None


def of_text(text: str, stage: str, found: Collection[str], before: Sequence[str] = ()) -> Attribution:
    """Return what an error text stands for; among the causes it may stand for, one that broke an earlier stage (a GPU whose memory is full lets cuBLAS fail in words
    of its own), else the one that the rules found too."""
    row = _known_words(text, stage)
    if row is None:
        return Attribution()
    again = next((cause for cause in row.causes if cause in before), "")
    sure = next((cause for cause in row.causes if cause in found and again in ("", cause)), "")
    likely = row.is_sure or again
    confidence = Confidence.CERTAIN if sure else Confidence.LIKELY if likely else Confidence.POSSIBLE
    remedy = "" if again and again != row.causes[0] and not sure else row.remedy
    return Attribution(cause=sure or again or row.causes[0], remedy=remedy, confidence=confidence)


def of_failure(failure: RunFailure, output: str, crash: str, killed: str, found: Collection[str]) -> Attribution:
    """Return why ranks had to be ended. ``output`` is what it printed last, ``crash`` what faulthandler wrote of the dead rank."""
    if failure.kind == "died":
        return _of_death(failure, output, crash, killed, found)
    if failure.kind == "died-at-end":
        seen = f"{_ranks(failure.ranks)} was ended by {ended_by(failure.status or 0)} at its end, after all stages (a handler of atexit, libraries that do not fit)"
        return Attribution(cause="rank-crashed", seen=seen)
    if failure.kind == "not-started":
        blame = of_text(crash + "\n" + output[-_TEXT_BYTES:], failure.stage, found)
        how = f" ({crash.strip().splitlines()[0]})" if crash.strip() else ""
        if _SILENT in output:
            return Attribution(
                seen="the ranks ran but did not report anything: the program given by --python clears the environment"
            )
        words = _last_error(output) or f"the ranks exited before they started work{how}"
        return msgspec.structs.replace(blame, seen=words)
    if failure.kind == "launcher-killed":
        return _of_launcher(failure.status or 0, killed)
    who = _ranks(failure.ranks)
    words = {
        "stopped": f"{who} {_is(failure.ranks)} stopped (SIGSTOP, a debugger or a frozen cgroup) and the others wait",
        "blocked": f"{who} {_is(failure.ranks)} blocked in the kernel (state D)",
        "launcher-stopped": "the process that started the ranks is stopped (SIGSTOP, a debugger or a frozen cgroup)",
        "out-of-time": "the time for the whole test was up",
        "not-ended": f"{who} {_do(failure.ranks)} not end, though all stages are through (a thread or a handler that waits at the end?)",
        "starved": f"{who} {_do(failure.ranks)} not get through for want of a CPU: {failure.seen}",
    }.get(failure.kind, f"{who} did not go on" if failure.ranks else "no rank goes on")
    causes = {"stopped": "rank-stopped", "blocked": "rank-blocked-in-kernel"}
    causes |= {"not-ended": "rank-does-not-end", "starved": "straggler-held-back"}
    causes |= {kind: kind for kind in ("launcher-stopped", "out-of-time")}
    return Attribution(cause=causes.get(failure.kind, "rank-hung"), seen=words)


def _of_launcher(status: int, killed: str) -> Attribution:
    seen = f"the process that started the ranks was ended by {ended_by(status)}, and they with it"
    if killed:
        return Attribution(cause="host-memory-oom", seen=f"{seen}: {killed}", remedy=MORE_MEMORY)
    return Attribution(cause="launcher-killed", seen=seen, remedy=_WHO_ENDS)


def _of_death(failure: RunFailure, output: str, crash: str, killed: str, found: Collection[str]) -> Attribution:
    code = failure.status
    how = "ended" if code is None else f"was ended by {ended_by(code)}" if code < 0 else f"ended with status {code}"
    seen = f"{_ranks(failure.ranks)} {how}"
    if killed and (code is None or -code not in _BY_ITS_OWN_FAULT):
        return Attribution(
            cause="host-memory-oom",
            seen=f"{seen}: {killed}",
            remedy=MORE_MEMORY,
        )
    blame = of_text(
        f"{'' if code is None or code >= 0 else ended_by(code)}\n{crash}\n{output[-_TEXT_BYTES:]}", failure.stage, found
    )
    limit_s = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if code == -9 and 0 <= limit_s <= failure.seconds * (os.cpu_count() or 1):  # at the hard limit it is no SIGXCPU
        blame = Attribution(cause="cpu-time-limit", remedy="ulimit -t unlimited")
    if not blame.cause:
        cause = "rank-killed" if code is None or -code in _ASKED_TO_END else "rank-crashed"
        blame = Attribution(cause=cause, remedy=_WHO_ENDS if cause == "rank-killed" else "")
    error = _last_error(output) if code is not None and code > 0 else ""
    return msgspec.structs.replace(blame, seen=f"{seen}: {error}" if error else seen)


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}" if ranks else "every rank"


def _is(ranks: tuple[int, ...]) -> str:
    return "are" if len(ranks) > 1 else "is"


def _do(ranks: tuple[int, ...]) -> str:
    return "do" if len(ranks) > 1 else "does"


_NOISE = re.compile(r"^(\s|Traceback|=+|-+|\[?[WIE]\d{4})")


def _last_error(output: str) -> str:
    """Return the last line that looks like an error."""
    lines = [line.strip() for line in output.splitlines() if line.strip() and not _NOISE.match(line)]
    errors = [line for line in lines if re.search(r"(Error|Exception|cannot|failed|refused)\b|error:", line)]
    return brief((errors or lines or [""])[-1], _LINE)
