"""The joint part of ``preflight``: begun before anything else, ended with the verdict of all nodes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torchtune_sys.errors import UnreadableInput, UserError

if TYPE_CHECKING:
    from torchtune_sys.model.preflight import NodeVerdict, Preflight
    from torchtune_sys.model.snapshot import Snapshot
    from torchtune_sys.preflight.joint.rank import Joint
    from torchtune_sys.preflight.policy import Policy


def begin(options: Mapping[str, Any], env: Mapping[str, str], budget_s: float) -> Joint | None:
    """This rank's part, where the environment names several ranks; None alone, and at other levels. Raises UserError."""
    if options["level"] != "standard" or options["from_"] or options["alone"]:
        return None
    from torchtune_sys.host.peers.wire import Gone
    from torchtune_sys.preflight.joint.job import job_of
    from torchtune_sys.preflight.joint.names import hosts_of
    from torchtune_sys.preflight.joint.rank import Joint

    hosts = hosts_of(_text(options["hostfile"], "--hostfile")) if options["hostfile"] else ()
    job = job_of(env, hosts, _secret(options["secret_file"]))
    if job is None:
        return None
    try:
        return Joint(job, budget_s)
    except Gone as error:
        raise UserError(f"the joint part did not start: {error}", "--alone judges this node only") from None


def _text(path: str, option: str) -> str:
    from torchtune_sys.host.children.apart import text_of

    return text_of(path, f"{option} names a file that can be read")


def _secret(path: str | None) -> bytes:
    """The job's secret. A file that others can read holds none."""
    if not path:
        return b""
    text = _text(path, "--secret-file").strip()
    try:
        is_open = os.stat(path).st_mode & 0o077
    except OSError as error:
        raise UnreadableInput(f"{path}: {error.strerror}", "--secret-file names a file that can be read") from None
    if is_open or not text:
        raise UserError(f"{path}: {'others may read or write it' if is_open else 'it is empty'}", f"chmod 600 {path}")
    return text.encode()


def families(joint: Joint) -> tuple[str, ...] | None:
    """What is looked at on this rank: one rank of a node judges the node."""
    return None if joint.speaks else ("python", "session", "system")


def finish(joint: Joint, seen: Snapshot, node: NodeVerdict, found: Preflight, policy: Policy, started_s: float) -> Preflight:
    """Tell the others of this node, take part, and give the verdict of all. Raises UserError."""
    import msgspec

    from torchtune_sys.cli.terminal import environment, is_terminal, status
    from torchtune_sys.host.children.child_environment import for_training
    from torchtune_sys.host.children.examined import runner
    from torchtune_sys.model.values import Missing
    from torchtune_sys.preflight.joint.facts import facts_of
    from torchtune_sys.preflight.joint.judge.whole import Whole
    from torchtune_sys.render.layout import clean

    if joint.speaks:
        joint.note("node", msgspec.to_builtins(node.causes))
        joint.note("facts", msgspec.to_builtins(facts_of(seen, node.node, environment())))
    python = "" if isinstance(seen.python, Missing) or isinstance(seen.python.executable, Missing) else seen.python.executable
    user = runner(python) if python else None
    if isinstance(user, Missing):
        raise UserError(f"{python}: {user.detail}", user.remedy)
    import sys

    def show(text: str) -> None:
        if is_terminal(sys.stderr):
            status(clean(text))

    told = joint.run(python, for_training(user), user, show)
    show("")
    if told is None or "cut-off" in told:
        return _partial(found, node, "no verdict of all nodes came" if told is None else told["cut-off"], started_s)
    try:
        whole = msgspec.convert(told, Whole)
    except (msgspec.ValidationError, RecursionError):
        return _partial(found, node, "the coordinator gave a verdict that makes no sense", started_s)
    return _weighed(found, whole, policy, joint.job.nodes, time.monotonic() - started_s)


def _partial(found: Preflight, node: NodeVerdict, seen: str, started_s: float) -> Preflight:
    """What this node knows of itself stands."""
    import msgspec

    from torchtune_sys.model.preflight import Go
    from torchtune_sys.preflight import verdict

    causes = verdict.ordered([*node.causes, verdict.fault(seen)])
    both = msgspec.structs.replace(node, causes=causes, verdict=verdict.verdict(causes))
    whole = Go.NO_GO if both.verdict is Go.NO_GO else Go.UNKNOWN
    return msgspec.structs.replace(found, nodes=(both,), verdict=whole, seconds=time.monotonic() - started_s)


def _weighed(found: Preflight, whole: Any, policy: Policy, nodes: int, seconds: float) -> Preflight:
    """The verdict of all, as the site's policy weighs what was found between nodes."""
    import msgspec

    from torchtune_sys.model.preflight import Cause, Go, Scale, Weight
    from torchtune_sys.preflight import verdict

    def weighed(cause: Cause) -> Cause | None:
        if not cause.rule.startswith("joint:") or cause.weight is Weight.UNKNOWN:
            return cause
        weight = policy.weight_of(cause.cause, cause.weight)
        return None if weight is None else msgspec.structs.replace(cause, weight=weight)

    judged = []
    for node in whole.all_nodes():
        causes = verdict.ordered(cause for cause in map(weighed, node.causes) if cause is not None)
        judged.append(msgspec.structs.replace(node, causes=causes, verdict=verdict.verdict(causes)))
    links = tuple(link for link in whole.links if policy.weight_of(link.cause, Weight.FATAL) is not None)
    fatal_links = any(policy.weight_of(link.cause, Weight.FATAL) is Weight.FATAL for link in links)
    result = whole.verdict
    if result is Go.NO_GO and not fatal_links and all(node.verdict is not Go.NO_GO for node in judged):
        result = Go.UNKNOWN if any(node.verdict is Go.UNKNOWN for node in judged) else Go.GO
    elif result is Go.GO and any(node.verdict is Go.NO_GO for node in judged):
        result = Go.NO_GO
    return msgspec.structs.replace(
        found,
        verdict=result,
        nodes=tuple(judged),
        links=links,
        suspects=whole.suspects,
        absent=whole.absent,
        scale=Scale(nodes=nodes, ranks=whole.ranks),
        seconds=seconds,
    )


def write_lists(folder: str, found: Preflight) -> None:
    """The nodes to go on with, and those to leave out, as launchers take them. Raises CannotWrite."""
    from torchtune_sys.host.files import READABLE, write_atomically
    from torchtune_sys.model.preflight import Go
    from torchtune_sys.preflight.joint.names import is_host_name

    refused = {*(node.node for node in found.nodes if node.verdict is Go.NO_GO), *found.absent}
    bad = sorted(filter(is_host_name, refused))  # the others have no name that a launcher knows
    good = [node.node for node in found.nodes if node.node not in refused and is_host_name(node.node)]
    texts = {
        "good_nodes.txt": "".join(f"{name}\n" for name in good),
        "bad_nodes.txt": "".join(f"{name}\n" for name in bad),
        "exclude.txt": f"--exclude={','.join(bad)}\n" if bad else "",
        "hostfile": "".join(f"{name}\n" for name in good),
    }
    for name, text in texts.items():
        write_atomically(os.path.join(folder, name), text, by_root=READABLE)
