"""Write the facts file of one snapshot, with the findings of the rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from torchtune_sys import __version__

if TYPE_CHECKING:
    from torchtune_sys.model.rule import Result
    from torchtune_sys.model.snapshot import Snapshot


def facts_line(seen: Snapshot, results: Iterable[Result]) -> str:
    """Return the facts as one line of JSON."""
    from torchtune_sys.cli.privilege import node_name
    from torchtune_sys.cli.take_snapshot import now
    from torchtune_sys.fleet.facts_file import document, host_name
    from torchtune_sys.model.rule import Severity, Verdict

    failed = [result.rule for result in results if result.verdict is Verdict.FAIL]
    by_severity = {severity: sorted(rule.id for rule in failed if rule.severity is severity) for severity in Severity}
    time, epoch_s = now()
    volatile = {
        "host": host_name(seen) or node_name(),
        "time": time,
        "epoch_s": round(epoch_s, 3),
        "origin": seen.origin,
        "findings": {severity.value: rules for severity, rules in by_severity.items() if rules},
    }
    return document(seen, version=__version__, volatile=volatile)
