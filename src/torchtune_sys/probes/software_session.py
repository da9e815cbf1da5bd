"""What other processes hold that a job of this session would want: its rendezvous port, NVIDIA's Multi-Process Service."""

from __future__ import annotations

from torchtune_sys.host.base import Host
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.software import Mps
from torchtune_sys.model.values import Missing, Why

_TABLES = ("/proc/net/tcp", "/proc/net/tcp6")
_LISTEN = "0A"
"""TCP_LISTEN (include/net/tcp_states.h)."""
_MPS = "/tmp/nvidia-mps"
"""Where client and daemon meet unless CUDA_MPS_PIPE_DIRECTORY says otherwise (nvidia-cuda-mps-control(1))."""


def listeners(host: Host, port: str) -> Fact[tuple[int, ...]]:
    """UIDs of who listens on a TCP port in this network namespace, each once."""
    if not (port.isascii() and port.isdigit() and len(port) < 6 and 0 < int(port) < 65536):
        return Missing(Why.UNPARSED, "MASTER_PORT", f"not a port: {port[:40]!r}")
    found: dict[int, None] = {}
    for path in _TABLES:
        text = host.text(path)
        if isinstance(text, Missing):
            if path == "/proc/net/tcp6" and text.why is Why.ABSENT:  # ipv6.disable=1
                continue
            return text
        found.update(dict.fromkeys(parse_listeners(text, int(port))))
    return tuple(found)


def parse_listeners(text: str, port: int) -> tuple[int, ...]:
    r"""UIDs of the sockets that listen on ``port``, from /proc/net/tcp (Documentation/networking/proc_net_tcp.rst).

    >>> parse_listeners("  sl  local_address rem_address   st\n"
    ... "   0: 00000000:733C 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 31337 1 0\n", 29500)
    (1000,)
    """
    end = f":{port:04X}"
    found: list[int] = []
    for line in text.splitlines():
        if end not in line:
            continue
        words = line.split()
        if len(words) > 7 and words[1].endswith(end) and words[3] == _LISTEN and words[7].isascii() and words[7].isdigit():
            found.append(int(words[7][:10]))
    return tuple(found)


def mps(host: Host) -> Fact[Mps]:
    """ABSENT where neither the environment nor the default directory speaks of it."""
    env = host.env()
    if isinstance(env, Missing):
        return env
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
    """The socket is bound by a living process, or the process is there that the daemon's own note names."""
    sockets = host.text("/proc/net/unix")
    if isinstance(sockets, Missing):
        return sockets
    if parse_bound(sockets, f"{directory}/control"):
        return True
    note = host.word(f"{directory}/nvidia-cuda-mps-control.pid")
    if isinstance(note, Missing):
        return False if note.why is Why.ABSENT else note
    name = host.word(f"/proc/{note}/comm") if note.isascii() and note.isdigit() and len(note) < 10 else ""
    if isinstance(name, Missing):
        return False if name.why is Why.ABSENT else name
    return name.startswith("nvidia-cuda-mps")


def parse_bound(text: str, path: str) -> bool:
    r"""Whether /proc/net/unix lists a socket with this path; a socket's line goes with its process, the file stays.

    >>> parse_bound("Num RefCount Protocol Flags Type St Inode Path\n0: 00000002 00000000 00010000 0005 01 77 /tmp/nvidia-mps/control\n",
    ... "/tmp/nvidia-mps/control")
    True
    """
    return any(line.endswith(path) and line[: -len(path)].endswith(" ") for line in text.splitlines())
