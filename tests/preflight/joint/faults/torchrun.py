"""The faults that the look at a node, the meeting of agents and the comparison of facts can see, met by torchrun with our rendezvous handler.

    PYTHONPATH=tests python -m preflight.joint.faults.torchrun RECORD [FAULT ...]     one line of JSON each, added to RECORD
    PYTHONPATH=tests python -m preflight.joint.faults.torchrun table RECORD           rows for docs/torchrun-faults.md

TORCHTUNE_SYS_TEST_TORCH names a Python that has torch. Written before the first run: what each must say, and who ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from preflight.joint.agents_here import PORT, Agent, environment, ran, torchrun
from preflight.joint.cluster import Cluster, cluster, run
from preflight.joint.faults import FAULTS, dead_host
from preflight.joint.faults.computing import Plant

NODES = 4
ALL = frozenset(range(1, NODES + 1))


class Seen(NamedTuple):
    """A fault at a host, and what its agents say."""

    plant: Plant
    words: str
    """A regular expression that each agent that judged must print; ``{n}`` is the host."""
    at: int = 3
    ends: frozenset[int] = ALL
    """Who must not train; the others must."""
    speaks: frozenset[int] = ALL
    """Who must say it."""
    fatal: str = ""
    """What the policy calls fatal: this machine's own findings are none of the test's."""
    nnodes: str = "4"
    conf: str = ""


def inside(script: str) -> Plant:
    """Something that is so on one host before torchrun starts there."""

    def plant(made: Cluster, node: int) -> dict[str, Any]:
        return {"inside": {node: script.format(folder=made.folder)}}

    return plant


def variables(**env: str) -> Plant:
    return lambda made, node: {"env": {node: env}}


def other_torch(made: Cluster, node: int) -> dict[str, Any]:
    """The files of torch say another release, on that host alone."""
    script = (
        'for file in $("$TORCH_PYTHON" -c "import torch,os,glob;p=torch.__path__[0];v=glob.glob(os.path.dirname(p)+\'/torch-*/METADATA\');'
        "print(p+'/version.py',*v)\"); do sed 's/2\\.[0-9]*\\.[0-9]/2.4.1/' \"$file\" >{folder}/changed; "
        'cp {folder}/changed "{folder}/changed$(basename "$file")"; mount --bind "{folder}/changed$(basename "$file")" "$file"; done'
    )
    return inside(script)(made, node)


def refused(made: Cluster, node: int) -> dict[str, Any]:
    made.drop(node, "ct state new tcp dport 1024-65535 ip saddr 10.78.0.0/24 reject with tcp reset")
    return {}


def one_way_to_the_first(made: Cluster, node: int) -> dict[str, Any]:
    made.drop(1, f"ip saddr {made.address(node)} drop")
    return {}


def taken(made: Cluster, node: int) -> dict[str, Any]:
    """Another program listens where the rendezvous is to be."""
    listens = f"import socket,time; s=socket.create_server(('',{PORT})); time.sleep(60)"
    child = subprocess.Popen(["ip", "netns", "exec", made.space(node), sys.executable, "-c", listens], start_new_session=True)
    made.stack.callback(child.wait)
    made.stack.callback(child.kill)
    time.sleep(0.5)
    return {}


def waits_for(made: Cluster, node: int, act: Callable[[Cluster, int, list[int]], None]) -> dict[str, Any]:
    """The last agent comes late; meanwhile ``act`` meets the processes of ``node``, which wait for it."""
    return {"during": lambda: act(made, node, _met(made, node)), "last_after_s": 8.0}


def _met(made: Cluster, node: int) -> list[int]:
    """The processes of a host once its pre-flight waits for the others, torchrun first."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        words = subprocess.run(["ip", "netns", "pids", made.space(node)], capture_output=True, text=True).stdout.split()
        pids = sorted(map(int, words))
        if sum(b"torchtune_sys" in _line(pid) for pid in pids) >= 2:  # the command, and the process that speaks for the node
            time.sleep(1.5)
            return pids
        time.sleep(0.1)
    raise AssertionError("no pre-flight began")


def _line(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def signalled(sig: signal.Signals, which: str = "", *, but_first: bool = False) -> Plant:
    """``which``: a word of the command line; else all processes of the host, ``but_first``: the shell that started the others is left."""

    def act(made: Cluster, _node: int, pids: list[int]) -> None:
        for pid in pids[but_first:]:
            if which.encode() in _line(pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, sig)
                if sig is signal.SIGSTOP:
                    made.stack.callback(_end, pid)

    return lambda made, node: waits_for(made, node, act)


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def started_again(made: Cluster, node: int) -> dict[str, Any]:
    """What keeps agents running starts another one where the first was killed."""
    killed = signalled(signal.SIGKILL, but_first=True)(made, node)
    return {**killed, "inside": {node: '"$@" || :'}, "heard": True}


def link_down(made: Cluster, node: int) -> dict[str, Any]:
    return waits_for(made, node, lambda made, node, _pids: run("ip", "link", "set", made.outer(node), "down"))


def of_joint(name: str) -> Plant:
    return FAULTS[name].plant


def never(made: Cluster, node: int) -> dict[str, Any]:
    return {"skip": (node,)}


def dead(made: Cluster, node: int) -> dict[str, Any]:
    dead_host(made, node)
    return {"skip": (node,)}


def with_list(plant: Plant) -> Plant:
    """The agents are given the list of all."""
    return lambda made, node: {**plant(made, node), "listed": True}


_OTHERS = ALL - {3}
_ABSENT = "join_timeout=12"
FAULTY = {
    # what the look at a node sees
    "dev-shm-small": Seen(
        inside("mount -t tmpfs -o size=32m none /dev/shm"), r"n{n} \[\w+\] dev-shm-too-small", fatal="dev-shm-too-small"
    ),
    "open-files": Seen(inside("ulimit -n 256"), r"n{n} \[\w+\] nofile-limit-too-low", fatal="nofile-limit-too-low"),
    "hung-mount": Seen(
        of_joint("hung-mount"), r"n{n} \[\w+\] (hung-mount|filesystem-not-answering)", fatal="filesystem-not-answering"
    ),
    # what the facts of all say
    "loopback-name": Seen(of_joint("loopback-name"), r"n{n} \[node\] hostname-resolves-to-loopback"),
    "loopback-name-first": Seen(of_joint("loopback-name"), r"n{n} \[node\] hostname-resolves-to-loopback", at=1),
    "no-name": Seen(of_joint("no-name"), r"n{n} \[node\] hostname-unresolvable"),
    "mtu": Seen(of_joint("mtu"), r"n{n} \[network\] mtu-differs-between-nodes"),
    "duplicate": Seen(of_joint("duplicate"), r"n{n} \[network\] duplicate-address.*is assigned to n[34] and n[34]", conf=_ABSENT),
    "bridge-interface": Seen(of_joint("bridge-interface"), r"n{n} \[\w+\] nccl-wrong-interface"),
    "absent-interface": Seen(of_joint("absent-interface"), r"n{n} \[\w+\] nccl-wrong-interface"),
    "clock": Seen(of_joint("clock"), r"n{n} \[\w+\] clock-skew"),
    "other-torch": Seen(other_torch, r"n{n} \[\w+\] software-differs-between-nodes: job.torch is 2\.4\.1"),
    "nccl-variable": Seen(variables(NCCL_ALGO="Ring"), r"n{n} \[\w+\] environment-differs-between-nodes.*NCCL_ALGO"),
    "quota": Seen(of_joint("quota"), r"n{n} \[\w+\] cpu-quota-on-one-node"),
    # who meets
    "never": Seen(never, r"did not come: 1 of 4 agents", ends=ALL, speaks=_OTHERS, conf=_ABSENT),
    "never-listed": Seen(with_list(never), r"did not come: n3", speaks=_OTHERS, conf=_ABSENT),
    "dead-host": Seen(with_list(dead), r"did not come: n3", speaks=_OTHERS, conf=_ABSENT),
    "endpoint-never": Seen(never, r"did not come: n1", at=1, speaks=ALL - {1}, conf=_ABSENT),
    "endpoint-refuses": Seen(refused, r"did not come: n1", at=1, speaks=ALL - {1}, conf=_ABSENT),
    "endpoint-drops": Seen(of_joint("ports-dropped"), r"(?s)did not come: n1|NO-GO n1: .*port-dropped", at=1, conf=_ABSENT),
    "endpoint-taken": Seen(taken, r"n{n} \[user\] master-port-in-use", at=1, conf=_ABSENT),
    "one-way-to-endpoint": Seen(with_list(one_way_to_the_first), r"did not come: n3", speaks=ALL - {3}, conf=_ABSENT),
    "cut": Seen(with_list(of_joint("cut")), r"network-partition: n1, n2 \| n3, n4", speaks=frozenset({1, 2}), conf=_ABSENT),
    "stopped": Seen(
        signalled(signal.SIGSTOP),
        r"n{n} .*rank-stopped",
        ends=frozenset({3}),
        speaks=_OTHERS,
        nnodes="3:4",
        conf="last_call_timeout=20",
    ),
    "stopped-preflight": Seen(
        signalled(signal.SIGSTOP, "torchtune_sys"),
        r"n{n} .*rank-stopped",
        ends=frozenset({3}),
        speaks=_OTHERS,
        nnodes="3:4",
        conf="last_call_timeout=20",
    ),
    "killed": Seen(
        signalled(signal.SIGKILL),
        r"n{n} .*rank-killed",
        ends=frozenset({3}),
        speaks=_OTHERS,
        nnodes="3:4",
        conf="last_call_timeout=20",
    ),
    "link-down": Seen(
        link_down,
        r"n{n} .*(link-down|rank-stopped)",
        ends=frozenset({3}),
        speaks=_OTHERS,
        nnodes="3:4",
        conf="last_call_timeout=20",
    ),
    "started-again": Seen(started_again, r"GO +4 of 4 nodes, 4 agents", ends=frozenset()),
}
"""By name. Of the look at a node some rules stand for all: what each rule sees is tested with the rules."""


def met(made: Cluster, python: Path, seen: Seen, patience_s: float = 150) -> dict[int, Agent]:
    """Four agents, with the fault planted."""
    folder = made.folder
    planted = seen.plant(made, seen.at)
    fatal = f"fatal = [{json.dumps(seen.fatal)}]\n" if seen.fatal else ""
    (folder / "policy.toml").write_text(f'warning = ["error"]\n{fatal}')
    hosts = folder / "hostfile"
    hosts.write_text("".join(f"{name}\n" for name in made.names))
    conf = ",".join(filter(None, (seen.conf, f"hostfile={hosts}" if planted.get("listed") else "")))
    endpoint = f"{planted.get('master', 'n1')}:{PORT}"
    commands = {n: torchrun(python, folder, seen.nnodes, conf, endpoint) for n in ALL if n not in planted.get("skip", ())}
    for number, script in planted.get("inside", {}).items():
        commands[number] = ["sh", "-ec", f'{script}; exec "$@"', "-", *commands[number]]
    env = {n: {"TORCH_PYTHON": str(python), **planted.get("env", {}).get(n, {})} for n in commands}
    acting = threading.Thread(target=planted.get("during", lambda: None))
    acting.start()
    began_s = time.monotonic()
    late = (
        {4: lambda: not acting.is_alive() and time.monotonic() > began_s + planted["last_after_s"]} if "during" in planted else {}
    )
    try:
        return ran(
            made,
            commands,
            folder,
            env=env,
            after=late,
            outer=planted.get("outer"),
            unheard={seen.at} if "during" in planted and "heard" not in planted else (),
            patience_s=patience_s,
        )
    finally:
        acting.join()


def problems(seen: Seen, found: dict[int, Agent]) -> list[str]:
    """What is wrong with what the agents said and did."""
    words = seen.words.replace("{n}", str(seen.at))
    wrong = []
    for number in sorted(seen.speaks & {*found}):
        if not re.search(words, found[number].told):
            wrong.append(f"n{number} does not say it: {found[number].told[-600:]}")
        elif "Traceback" in found[number].told:
            wrong.append(f"n{number} says a traceback")
    trained = {number for number, agent in found.items() if agent.status == 0 and agent.trained}
    if trained != {*found} - seen.ends:
        wrong.append(f"trained: {sorted(trained)}, statuses {[agent.status for agent in found.values()]}")
    return wrong


def fault(python: Path, name: str) -> dict[str, Any]:
    """One run, for the record."""
    seen = FAULTY[name]
    try:
        with tempfile.TemporaryDirectory() as folder, cluster(Path(folder), NODES) as made:
            found = met(made, python, seen)
    except pytest.skip.Exception as why:
        return {"fault": name, "skipped": str(why)}
    except AssertionError as error:
        return {"fault": name, "wrong": [str(error)[-1500:]], "load": round(os.getloadavg()[0], 1), "seconds": 0}
    seconds = max(agent.seconds for agent in found.values())
    return {"fault": name, "wrong": problems(seen, found), "seconds": round(seconds, 1), "load": round(os.getloadavg()[0], 1)}


def main(words: list[str]) -> None:
    if words[0] == "table":
        lines = [json.loads(line) for line in Path(words[1]).read_text().splitlines()]
        for name in FAULTY:
            runs = [line for line in lines if line["fault"] == name and "skipped" not in line]
            if runs:
                said = ["wrong" if line["wrong"] else "named" for line in (runs[0], runs[-1])]
                print(f"| {name} | {said[0]} | {said[1]} | {runs[-1]['seconds']:.0f} | {runs[-1]['load']:.0f} |")
        return
    with tempfile.TemporaryDirectory() as folder, open(words[0], "a") as record:
        python = environment(Path(folder))
        for name in words[1:] or FAULTY:
            line = fault(python, name)
            record.write(f"{json.dumps(line)}\n")
            record.flush()
            print(json.dumps(line)[:1500], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
