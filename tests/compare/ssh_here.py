"""An sshd on this machine's loopback, with keys and a port of its own, which ssh finds by any name that is asked for."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

SBIN = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/sbin"))
CONF = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile {folder}/sshd.pid
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
StrictModes no
UsePAM no
PrintMotd no
AcceptEnv LC_NODE
Banner {folder}/banner
Subsystem sftp internal-sftp
"""
FOUND = """
Host *
  HostName 127.0.0.1
  Port {port}
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  BatchMode yes
  StrictHostKeyChecking no
  UserKnownHostsFile /dev/null
  ControlPath none
"""


class Unavailable(Exception):
    """Why there is no sshd here."""


@contextmanager
def server(folder: Path, banner: str, names: Sequence[str]) -> Iterator[Path]:
    """The configuration with which ssh finds it; ``banner`` is what it says before the login. $LC_NODE is the name that was asked for. Raises Unavailable."""
    sshd = shutil.which("sshd", path=SBIN)
    lacking = [name for name in ("sshd", "ssh", "ssh-keygen") if shutil.which(name, path=SBIN) is None]
    if sshd is None or lacking or os.geteuid():
        raise Unavailable(f"needs root and {', '.join(lacking) or 'nothing else'}")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True, timeout=60)
    (folder / "banner").write_text(banner)
    (folder / "sshd.conf").write_text(CONF.format(port=port, folder=folder))
    called = "".join(f"Host {name}\n  SetEnv LC_NODE={name}\n" for name in names)
    (folder / "ssh.conf").write_text(called + FOUND.format(port=port, folder=folder))
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # of the privilege separation
    process = subprocess.Popen([sshd, "-D", "-e", "-f", folder / "sshd.conf"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        for _ in range(100):
            with suppress(OSError):
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            if process.poll() is not None:
                raise Unavailable(f"sshd: {process.communicate()[1].decode(errors='replace')[-300:]}")
            time.sleep(0.05)
        yield folder / "ssh.conf"
    finally:
        process.terminate()
        process.communicate()
