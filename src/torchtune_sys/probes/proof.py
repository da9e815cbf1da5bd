"""Locate the proof that the last passed smoke test left."""

from __future__ import annotations

from collections.abc import Mapping

from torchtune_sys.host.base import Host
from torchtune_sys.host.state_folder import STATE, doubt_of
from torchtune_sys.model.facts import Fact
from torchtune_sys.model.values import Missing, Why

SYSTEM = f"{STATE}/proof.json"
PROOF_LIMIT = 512 << 10
"""Bytes beyond which no proof is read, nor written: twenty runs with a hundred figures each take 150 kB."""


def proof_path(env: Mapping[str, str], uid: int, hostname: str) -> str:
    """Return the file: root's is the system's; anybody else has one in their state directory (XDG Base Directory Specification), which hosts may
    share. "" where there is no home.

    >>> proof_path({"HOME": "/home/ada"}, 1000, "node7"), proof_path({"HOME": "/root"}, 0, "node7"), proof_path({}, 1000, "node7")
    ('/home/ada/.local/state/torchtune-sys/proof-node7.json', '/var/lib/torchtune-sys/proof.json', '')
    """
    if uid == 0:
        return SYSTEM
    state = env.get("XDG_STATE_HOME", "")
    if not state.startswith("/"):
        home = env.get("HOME", "")
        state = f"{home.rstrip('/')}/.local/state" if home.startswith("/") else ""
    return f"{state.rstrip('/')}/torchtune-sys/proof-{hostname.replace('/', '_')}.json" if state else ""


def probe(host: Host, own: str) -> list[Fact[str]]:
    """Return the text of this user's proof (``own`` is its place) and of the system's; not of one that others may have written."""
    return [read(host, path) for path in dict.fromkeys((own, SYSTEM)) if path and not doubt_of(path)]


def read(host: Host, path: str) -> Fact[str]:
    """Return the text of a proof; *unparsed* for what is larger than any is."""
    found = host.stat(path)
    if not isinstance(found, Missing) and found.size > PROOF_LIMIT:
        return Missing(Why.UNPARSED, path, f"larger than {PROOF_LIMIT >> 10} KiB")
    return host.text(path)


def path_of_standard(own: str) -> str:
    """Return the place of the file of figures, which is written where the proof of the same user is.

    >>> path_of_standard("/home/ada/.local/state/torchtune-sys/proof-n7.json"), path_of_standard(SYSTEM), path_of_standard("")
    ('/home/ada/.local/state/torchtune-sys/standard-n7.json', '/var/lib/torchtune-sys/standard.json', '')
    """
    folder, slash, last = own.rpartition("/")
    return f"{folder}{slash}{last.replace('proof', 'standard', 1)}"
