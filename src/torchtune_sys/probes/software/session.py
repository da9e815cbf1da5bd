"""Find resources of a job that other processes hold: its rendezvous port, NVIDIA's Multi-Process Service."""

from __future__ import annotations

from torchtune_sys.host import queries
from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.software import Mps
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.values import Missing, Why, fact, need

_MPS = "/tmp/nvidia-mps"
"""Where client and daemon meet unless CUDA_MPS_PIPE_DIRECTORY says otherwise (nvidia-cuda-mps-control(1))."""


def listeners(host: Host, port: str) -> Fact[tuple[int, ...]]:
    """Return the UIDs of who listens on a TCP port in this network namespace, each once."""
    found = host.ask(f"{queries.PORT_LISTENERS}:{port}")
    if isinstance(found, Missing):
        return found if found.why is not Why.ABSENT else Missing(Why.NOT_RECORDED, found.source, "not asked when it was recorded")
    if not isinstance(found, list) or not all(isinstance(uid, int) for uid in found):
        return Missing(Why.UNPARSED, queries.PORT_LISTENERS, "not a list of user ids")
    return tuple(found)


@fact
def mps(host: Host) -> Fact[Mps]:
    """Return the state of NVIDIA's MPS; ABSENT where neither the environment nor the default directory speaks of it."""
    env = need(host.env())
    named = env.get("CUDA_MPS_PIPE_DIRECTORY", "")
    directory = (named or _MPS).rstrip("/") or "/"
    there = host.exists(directory)
    if there is False and not named:
        return Missing(Why.ABSENT, _MPS, "no Multi-Process Service was started here")
    if isinstance(there, Missing):
        return there
    socket = host.stat(f"{directory}/control")
    absent = isinstance(socket, Missing) and socket.why is Why.ABSENT
    return Mps(
        directory=directory,
        asked_for=bool(named),
        control=False if absent else socket if isinstance(socket, Missing) else True,
        listening=False if absent else _listening(host, directory),
        owner=socket if isinstance(socket, Missing) else socket.uid,
    )


def _listening(host: Host, directory: str) -> Fact[bool]:
    """Return whether the daemon listens: the socket is bound by a living process, or the process is there that the daemon's own note names."""
    bound = host.ask(f"{queries.BOUND_SOCKET}:{directory}/control")
    if isinstance(bound, Missing) or bound is True:
        return bound
    note = host.word(f"{directory}/nvidia-cuda-mps-control.pid")
    if isinstance(note, Missing):
        return False if note.why is Why.ABSENT else note
    name = host.word(f"/proc/{note}/comm") if natural(note, 9) is not None else ""
    if isinstance(name, Missing):
        return False if name.why is Why.ABSENT else name
    return name.startswith("nvidia-cuda-mps")
