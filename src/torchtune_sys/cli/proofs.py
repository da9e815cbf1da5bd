"""Read and write the proof of the smoke test, for ``smoke`` and ``check``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torchtune_sys.cli.privilege import effective_user, node_name
from torchtune_sys.cli.terminal import environment
from torchtune_sys.errors import CannotWrite
from torchtune_sys.host.base import Host
from torchtune_sys.host.live import LiveHost
from torchtune_sys.probes.proof import probe, proof_path, read

if TYPE_CHECKING:
    from torchtune_sys.model.smoke import SmokeReport
    from torchtune_sys.model.snapshot import Snapshot
    from torchtune_sys.smoke.proof import Proof


def own_path() -> str:
    """Return where this user's runs are remembered; "" where there is no place."""
    return proof_path(environment(), effective_user(), node_name())


def last_pass(host: Host, seen: Snapshot, epoch_s: float) -> str:
    """Return when the smoke test last passed, or what changed since then; "" where it never did."""
    texts = [text for text in probe(host, own_path()) if isinstance(text, str)]
    if not texts:
        return ""
    from torchtune_sys.smoke import proof

    found = [one for one in map(proof.parse, texts) if one is not None]
    if not found:
        return ""
    return proof.standing(max(found, key=lambda one: one.runs[-1].epoch_s), proof.fingerprint(seen), epoch_s)


def earlier_runs() -> Proof | None:
    """Return this user's own earlier runs."""
    from torchtune_sys.host.state_folder import doubt_of
    from torchtune_sys.smoke import proof

    place = own_path()
    text = read(LiveHost(), place) if place and not doubt_of(place) else ""
    return proof.parse(text) if isinstance(text, str) else None


def keep_run(before: Proof | None, report: SmokeReport, seen: Snapshot, epoch_s: float) -> str:
    """Write a pass down. Returns what hindered, "" if nothing did: the run is as good without."""
    from torchtune_sys.host.files import write_in_new_folder
    from torchtune_sys.host.state_folder import doubt_of
    from torchtune_sys.smoke import proof

    place = own_path()
    if not place:
        return "there is no home directory"
    if others := doubt_of(place):
        return others
    try:
        write_in_new_folder(place, proof.grown(before, report, proof.fingerprint(seen), epoch_s))
    except CannotWrite as error:
        return error.seen
    return ""
