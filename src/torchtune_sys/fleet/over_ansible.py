"""Ansible: the hosts of an inventory, asked by the collection's own module, or by a command that is named."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.fleet.collecting import Answer, shortened
from torchtune_sys.host.children import process
from torchtune_sys.host.input.reading import read_input
from torchtune_sys.host.scratch import directory
from torchtune_sys.host.trust import distrust
from torchtune_sys.model import codec
from torchtune_sys.model.values import Missing, Why
from torchtune_sys.render.as_json import SNAPSHOT

_ASK_S = 60.0
_GRACE_S = 15.0
"""What Ansible takes beside the command, to start and to connect."""
_WIDTH = 16
"""Hosts of one run of Ansible, as of clush; each run takes seconds to start."""
_FACTS = ("-m", "torchtune.sys.torchtune_facts", "-a", "families=all")


class Ansible:
    """``pattern``: the hosts of the inventory, ``gpu:!login``; without a command the collection's module torchtune_facts is asked."""

    def __init__(self, inventory: str, pattern: str, environment: Mapping[str, str], fanout: int, own_command: bool) -> None:
        self.width = min(fanout, _WIDTH)
        self._inventory = inventory
        self._pattern = pattern or "all"
        self._fanout = fanout
        self._own_command = own_command
        self._environment = {**environment, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_DEPRECATION_WARNINGS": "0"}
        self._folder = os.getcwd()
        if os.geteuid() == 0 and distrust(self._folder):  # its ansible.cfg names plug-ins, which run here
            self._folder = "/"
            self._inventory = os.path.abspath(inventory) if os.path.exists(inventory) else inventory

    def hosts(self) -> tuple[Sequence[str], Sequence[Answer]]:
        argv = ("ansible", "-i", self._inventory, "--list-hosts", "--", self._pattern)
        found = process.run(argv, timeout_s=_ASK_S, env=self._environment, cwd=self._folder)
        if isinstance(found, Missing):
            raise UnreadableInput(f"Ansible could not list the hosts: {found}", "install ansible-core, or use --nodes")
        hosts = [row.strip() for row in found.stdout.splitlines() if row.startswith("    ")]
        if found.rc or not hosts:
            said = shortened((found.stderr or "it holds no host").strip().partition("\n")[0])
            raise UnreadableInput(f"--inventory {self._inventory}: {said}", "give an inventory that ansible --list-hosts reads")
        return hosts, ()

    def run(self, hosts: Sequence[str], command: tuple[str, ...], timeout_s: float) -> Iterable[Answer]:
        what = ("-m", "ansible.builtin.command", "-a", shlex.join(command)) if self._own_command else _FACTS
        whom = ("-i", self._inventory, "-f", str(self._fanout))
        with directory("") as tree:
            argv = ("ansible", *whom, *what, "--task-timeout", f"{max(timeout_s, 1):.0f}", "--tree", tree, "--", ":".join(hosts))
            # Its standard output holds all answers once more: the tree has them by host.
            memory_kib = _MEMORY_KIB + len(hosts) * _MEMORY_PER_HOST_KIB
            no_more = f'[ "$(ulimit -d)" -le {memory_kib} ] 2> /dev/null || ulimit -d {memory_kib} 2> /dev/null'
            quiet = ("sh", "-c", f'{no_more}; exec "$@" > /dev/null', "ansible", *argv)
            found = process.run(quiet, timeout_s=timeout_s + _GRACE_S, env=self._environment, cwd=self._folder)
            return [_answer(host, tree, found, timeout_s) for host in hosts]


_MEMORY_KIB, _MEMORY_PER_HOST_KIB = 1 << 20, 256
"""Of each of Ansible's processes, KiB: one for each host holds all that its host answers, which need not end; the first holds something of each host."""


def _answer(host: str, tree: str, found: Any, timeout_s: float) -> Answer:
    place = os.path.join(tree, host)
    if not os.path.isfile(place):
        late = not isinstance(found, Missing) or found.why is Why.TIMEOUT
        said = "" if isinstance(found, Missing) else found.stderr.strip().rpartition("\n")[2]
        return Answer(host=host, why=(said or f"no answer within {timeout_s:g} s") if late else str(found))
    try:
        result = codec.loads(read_input(place, plain=True))
    except (ValueError, UnreadableInput) as error:
        return Answer(host=host, why=f"Ansible's answer cannot be read: {error}")
    return of_result(host, result) if isinstance(result, dict) else Answer(host=host, why="Ansible answered no result")


def of_result(host: str, result: Mapping[str, Any]) -> Answer:
    """Return what a task's result says.

    >>> of_result("a", {"unreachable": True, "msg": "no route"}).why
    'unreachable: no route'
    >>> of_result("a", {"ansible_facts": ["x"]}).why
    'Ansible answered no result'
    """
    facts = result.get("ansible_facts")
    local = facts.get("torchtune_sys") if isinstance(facts, dict) else None
    if isinstance(local, dict):
        document = {"schema": SNAPSHOT, "tool": {"version": local.get("version")}, "facts": local.get("facts")}
        return Answer(host=host, out=codec.line(document), status=0)
    if result.get("unreachable"):
        return Answer(host=host, why=f"unreachable: {_first(result.get('msg'))}")
    if "stdout" in result or "rc" in result:
        status = result.get("rc")
        error = str(result.get("stderr") or result.get("msg") or "")
        return Answer(
            host=host, out=str(result.get("stdout") or ""), error=error, status=status if isinstance(status, int) else 1
        )
    return Answer(host=host, why=_first(result.get("msg")) or "Ansible answered no result")


def _first(text: object) -> str:
    return str(text or "").strip().partition("\n")[0]
