"""The rendezvous handler: one pre-flight before an agent's first rendezvous, in a process of its own; all else is c10d's.

Whatever goes wrong with the pre-flight itself, the agent goes on to c10d as if there were none.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousParameters

NAME = "torchtune-sys"
_GO, _NO_GO, _UNJUDGED = 0, 1, 3
_JOIN_S, _LAST_CALL_S = 600, 30
"""Of c10d, where nothing is said (torch/distributed/elastic/rendezvous/dynamic_rendezvous.py, RendezvousTimeout)."""
_AFTER_MEETING_S = 60.0
"""For the facts of all once they came, and for the end of the process."""
_STORE_S = 20.0
"""How long the store at the endpoint is waited for; c10d itself then waits on."""


class Handler(RendezvousHandler):
    """As torchrun's ``--rdzv-conf`` it takes what c10d takes, and ``policy``, ``hostfile`` and ``secret_file``."""

    def __init__(self, params: RendezvousParameters) -> None:
        self._params = params
        self._c10d: RendezvousHandler | None = None
        self._is_done = False

    def get_backend(self) -> str:
        """Return our name: torchrun refuses a handler that has another than was asked for."""
        return NAME

    def get_run_id(self) -> str:
        return str(self._params.run_id)

    @property
    def use_agent_store(self) -> bool:
        return bool(self._rendezvous().use_agent_store)

    def next_rendezvous(self) -> RendezvousInfo:
        """Return the rendezvous, the first time after a pre-flight; restarts and other sizes of the job are c10d's alone. Ends the agent where its node is unfit."""
        if not self._is_done:
            self._is_done = True
            status, seconds = preflight(self._params)
            if status == _NO_GO:
                say(f"this agent ends before the rendezvous ({seconds:.1f} s)")
                raise SystemExit(_NO_GO)
            self._wait_for_store()
        return self._rendezvous().next_rendezvous()

    def is_closed(self) -> bool:
        return bool(self._rendezvous().is_closed())

    def set_closed(self) -> None:
        self._rendezvous().set_closed()

    def num_nodes_waiting(self) -> int:
        return int(self._rendezvous().num_nodes_waiting())

    def shutdown(self) -> bool:
        """Shut down; an agent that ended before its rendezvous closes nothing: the others may go on."""
        return self._c10d is None or bool(self._c10d.shutdown())

    def _rendezvous(self) -> RendezvousHandler:
        """c10d's own handler, made when it is first needed: its store listens from then on."""
        if self._c10d is None:
            from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
            from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

            backend, store = create_backend(self._params)
            self._c10d = create_handler(store, backend, self._params)
        return self._c10d

    def _wait_for_store(self) -> None:
        """torch's store tries again after seconds where it is refused: it is asked for when it is there."""
        host, port = _endpoint(self._params)
        until_s = time.monotonic() + _STORE_S
        is_waited_for = _is_tcp(self._params) and self._params.max_nodes > 1 and not _is_here(self._params, host)
        while is_waited_for and time.monotonic() < until_s:
            try:
                socket.create_connection((host, port), 2).close()
                return
            except (OSError, UnicodeError):
                time.sleep(0.05)


def preflight(params: RendezvousParameters) -> tuple[int, float]:
    """Run the pre-flight of this agent; its status, and how long it took. Any status but "no go" lets the agent go on."""
    began_s = time.monotonic()
    try:
        status = _run(params)
        if status not in (_GO, _NO_GO, _UNJUDGED):
            say(f"the pre-flight failed (status {status}); going on without it")
    except Exception as error:
        say(f"the pre-flight could not be run ({type(error).__name__}: {error}); going on without it")
        status = _UNJUDGED
    return status, time.monotonic() - began_s


def _run(params: RendezvousParameters) -> int:
    from torchtune_sys.host.children import process
    from torchtune_sys.host.isolation import START_APART, session
    from torchtune_sys.model.values import Missing

    meeting_s = _seconds(params, "join_timeout", _JOIN_S)
    child = process.start((sys.executable, "-c", START_APART, *_words(params, meeting_s)), env=session())
    if isinstance(child, Missing):
        raise OSError(child.detail)
    try:
        return _verdict(child, time.monotonic() + meeting_s + _AFTER_MEETING_S)
    finally:
        if child.poll() is None:
            process.end(child)
        process.forget(child)


def _verdict(child: Any, until_s: float) -> int:
    """Hand on what it says, line by line, until it ends. Where it says nothing of no-go, none is believed."""
    streams = {child.stdout.fileno(): bytearray(), child.stderr.fileno(): bytearray()}
    reason = child.stdout.fileno()
    open_ones = set(streams)
    while open_ones or child.poll() is None:
        if time.monotonic() > until_s:
            raise TimeoutError("it did not end in time")
        poll = select.poll()
        for number in open_ones:
            poll.register(number, select.POLLIN)
        ready = poll.poll(50)
        for number, _event in ready:
            part = os.read(number, 1 << 16)
            if not part:
                open_ones.discard(number)
            streams[number] += part
            while number != reason and b"\n" in streams[number]:
                line, _, rest = bytes(streams[number]).partition(b"\n")
                streams[number][:] = rest
                _print(line.decode("utf-8", "replace"))
        if not ready and child.poll() is not None:
            break  # a grandchild may hold the pipe
    for row in bytes(streams[reason]).decode("utf-8", "replace").splitlines():
        say(row)
    status = int(child.wait())
    if status == _NO_GO and not streams[reason].strip():
        return -_NO_GO  # Python's own status for a traceback
    return status


def _words(params: RendezvousParameters, meeting_s: float) -> list[str]:
    """Return the command's options."""
    words = [
        "preflight",
        "--quiet",
        "--color",
        "never",
        "--python",
        sys.executable,
        "--nnodes",
        f"{params.min_nodes}:{params.max_nodes}",
    ]
    for key in ("policy", "hostfile", "secret_file"):
        if value := params.get(key):
            words += [f"--{key.replace('_', '-')}", os.path.abspath(str(value))]
    if params.max_nodes == 1 or not _is_tcp(params):
        return words
    host, port = _endpoint(params)
    words += ["--rdzv-endpoint", f"{host}:{port}", "--rdzv-id", str(params.run_id), "--meet-within", str(meeting_s)]
    words += ["--last-call", str(_seconds(params, "last_call_timeout", _LAST_CALL_S))]
    is_host = params.get_as_bool("is_host")
    return words if is_host is None else [*words, "--rdzv-is-host", str(is_host).lower()]


def _seconds(params: RendezvousParameters, key: str, default: int) -> float:
    return float(params.get_as_int(key, default) or default)


def _is_tcp(params: RendezvousParameters) -> bool:
    return str(params.get("store_type", "tcp")).strip().lower() == "tcp"


def _endpoint(params: RendezvousParameters) -> tuple[str, int]:
    from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import DEFAULT_PORT
    from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint

    host, port = parse_rendezvous_endpoint(params.endpoint, default_port=DEFAULT_PORT)
    return str(host), int(port)


def _is_here(params: RendezvousParameters, host: str) -> bool:
    """Whether the store will be in this process's host, as c10d decides it."""
    from torch.distributed.elastic.rendezvous.utils import _matches_machine_hostname

    is_host = params.get_as_bool("is_host")
    return bool(_matches_machine_hostname(host)) if is_host is None else is_host


def say(text: str) -> None:
    """Print a line of ours."""
    _print(f"{NAME}: {text}")


def _print(text: str) -> None:
    """On standard error, where torchrun's own words are. Of a command that did not even start these are Python's, and may hold anything."""
    try:
        from torchtune_sys.host.secrets.filter import scrubbed

        told = scrubbed(text)
    except Exception as error:  # no word of others without the filter of secrets
        told = f"{NAME}: its own modules cannot be imported ({type(error).__name__}); going on without it"
    sys.stderr.write(f"{told}\n")
    sys.stderr.flush()
