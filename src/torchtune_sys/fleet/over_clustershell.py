"""ClusterShell: ``clush`` with its own node sets, groups and ssh settings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.fleet.collecting import Answer, shortened
from torchtune_sys.host.children import process
from torchtune_sys.model.values import Missing, Why

_ASK_S = 30.0
_EXITED = re.compile(r"^clush: (\S+): exited with exit code (-?[0-9]{1,9})$", re.MULTILINE)
_LATE = re.compile(r"^clush: (\S+): command timeout", re.MULTILINE)
"""Of clush itself: what a host prints stands behind the host's name, and may have these words, too."""
_GRACE_S = 5.0
_WIDTH = 8
"""Hosts of one clush, which all wait for the last of them: of few, one that hangs holds up few others."""
_STATUS_LATE = 124


class ClusterShell:
    """``nodes``: a node set, ``@group`` and ``node[1-9]!node3`` included."""

    def __init__(self, nodes: str, environment: Mapping[str, str], fanout: int) -> None:
        self.width = min(fanout, _WIDTH)
        self._nodes = nodes
        self._fanout = fanout
        self._environment = dict(environment)

    def hosts(self) -> tuple[Sequence[str], Sequence[Answer]]:
        found = process.run(("nodeset", "--expand", "--", self._nodes), timeout_s=_ASK_S, env=self._environment)
        if isinstance(found, Missing):
            raise UnreadableInput(f"ClusterShell could not list the hosts: {found}", "install clustershell, or use --slurm")
        hosts = found.stdout.split()
        if found.rc or not hosts:
            said = shortened((found.stderr or "it holds no node").strip().rpartition("\n")[2])
            raise UnreadableInput(f"--nodes {self._nodes}: {said}", "give a node set: node[1-64], @group")
        return hosts, ()

    def run(self, hosts: Sequence[str], command: tuple[str, ...], timeout_s: float) -> Iterable[Answer]:
        # clush ends a command by itself; -S gives its status, and says on standard error whose it was.
        argv = (
            "clush",
            "-S",
            "-w",
            ",".join(hosts),
            "-f",
            str(self._fanout),
            "-u",
            f"{max(timeout_s, 1):.0f}",
            "--color=never",
            "--nostdin",
        )
        unfinished: list[str] = []
        found = process.run(
            (*argv, "--", shlex.join(command)), timeout_s=timeout_s + _GRACE_S, env=self._environment, unfinished=unfinished
        )
        if (
            isinstance(found, Missing) and found.why is Why.FAILED and len(hosts) > 1
        ):  # too much: by one of them, who must not cost the others their answers
            middle = len(hosts) // 2
            return [*self.run(hosts[:middle], command, timeout_s), *self.run(hosts[middle:], command, timeout_s)]
        if isinstance(found, Missing) and found.why is not Why.TIMEOUT:
            return [Answer(host=host, why=str(found)) for host in hosts]
        out = "".join(unfinished) if isinstance(found, Missing) else found.stdout
        error = "" if isinstance(found, Missing) else found.stderr
        return answers(hosts, out, error, timeout_s, ended=not isinstance(found, Missing))


def answers(hosts: Sequence[str], out: str, error: str, timeout_s: float, *, ended: bool = True) -> list[Answer]:
    """Return what clush printed, by host: ``node7: a line``.

    >>> [(one.host, one.out, one.status, one.why) for one in answers(["a", "b"], "a: {}\\n", "clush: b: exited with exit code 3\\n", 9)]
    [('a', '{}', 0, ''), ('b', '', 3, '')]
    """
    printed = _by_host(hosts, out)
    complaints = _by_host(hosts, error)
    statuses = {host: int(status) for host, status in _EXITED.findall(error)}
    late = set(_LATE.findall(error.lower())) | {host for host, status in statuses.items() if status == _STATUS_LATE}
    found = []
    for host in hosts:
        silent = host in late or host.lower() in late or (not ended and not printed[host])
        found.append(
            Answer(
                host=host,
                out=printed[host],
                error=complaints[host],
                status=None if silent else statuses.get(host, 0),
                why=f"no answer within {timeout_s:g} s" if silent and not printed[host] else "",
            )
        )
    return found


def _by_host(hosts: Sequence[str], text: str) -> dict[str, str]:
    rows: dict[str, list[str]] = {host: [] for host in hosts}
    for row in text.split("\n"):
        host, colon, rest = row.partition(": ")
        if colon and host in rows:
            rows[host].append(rest)
    return {host: "\n".join(found) for host, found in rows.items()}
