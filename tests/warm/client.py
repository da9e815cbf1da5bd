"""``client.py SOCKET ARGUMENTS…``: has the server run the command, and ends as it ended. Imports only what takes no time."""

import _signal as signal  # type: ignore[import-not-found]
import _socket
import marshal
import os
import sys

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
HELD = ("mnt", "net", "uts", "ipc")
"""The namespaces that the server's child enters."""


def asked(connection: "_socket.socket") -> bytes:
    """Send the arguments with what a child would have inherited; what comes first is the process, or nothing where that cannot be."""
    mask = os.umask(0)
    os.umask(mask)
    request = marshal.dumps((sys.argv[2:], {bytes(key): bytes(value) for key, value in os.environb.items()}, mask))
    places = [os.open(".", os.O_PATH), *(os.open(f"/proc/self/ns/{name}", os.O_RDONLY) for name in HELD)]
    rights = b"".join(number.to_bytes(4, sys.byteorder) for number in (0, 1, 2, *places))
    connection.sendmsg([len(request).to_bytes(8, "little")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
    while request:
        request = request[connection.send(request) :]
    return connection.recv(8)


def followed(connection: "_socket.socket") -> "tuple[int, int]":
    """Exit status and signal of the run; what this process is sent meanwhile goes to it."""
    for number in FORWARDED:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda sent, _frame: connection.send(bytes([sent])))
    said = connection.recv(64)
    if not said:  # the server was killed
        sys.exit("the server that ran the command is gone")
    status = int(said)
    return (os.WEXITSTATUS(status), 0) if os.WIFEXITED(status) else (0, os.WTERMSIG(status))


def main() -> None:
    started = False
    try:
        if set(os.listdir("/proc/self/fd")) != {"0", "1", "2", "3"}:  # the last one reads this list
            raise OSError("more or less than the standard streams was inherited")
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        connection.connect(sys.argv[1])
        started = bool(asked(connection))
    except OSError:  # no server, no /proc, a stream that is closed
        pass
    if not started:
        os.execv(sys.executable, [sys.executable, "-m", "torchtune_sys", *sys.argv[2:]])
    status, killed = followed(connection)  # type: ignore[possibly-undefined]
    if killed:
        signal.signal(killed, signal.SIG_DFL) if killed not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), killed)
    os._exit(status)


main()
