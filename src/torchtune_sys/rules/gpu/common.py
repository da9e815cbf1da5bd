"""Judge one fact of every GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from torchtune_sys.model.facts import Fact
from torchtune_sys.model.facts.gpu import Gpu
from torchtune_sys.model.rule import Evidence, Verdict, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, absent_or_unsupported
from torchtune_sys.rules import gates

_T = TypeVar("_T")


def subject(gpu: Gpu) -> str:
    """Return the name of a GPU in findings: ``GPU 3 (0000:61:00.0)``."""
    return f"GPU {gpu.index}" if isinstance(gpu.pci_address, Missing) else f"GPU {gpu.index} ({gpu.pci_address})"


def each(
    s: Snapshot,
    fact: Callable[[Gpu], Fact[_T]],
    bad: Callable[[Gpu, _T], bool],
    seen: Callable[[_T], str],
    wanted: str | Callable[[Gpu], str],
    source: str,
) -> Iterator[Evidence]:
    """Yield evidence for each GPU that has the fact. GPUs that do not offer the reading are left out, lost ones have a rule of their own."""
    judged = False
    for gpu in gates.nvidia_gpus(s):
        value = fact(gpu)
        asked = wanted if isinstance(wanted, str) else wanted(gpu)
        if isinstance(value, Missing):
            if not absent_or_unsupported(value) and not gpu.lost:
                judged = True
                yield unsure(subject(gpu), value, asked)
            continue
        judged = True
        yield Evidence(
            subject=subject(gpu),
            seen=seen(value),
            wanted=asked,
            verdict=Verdict.FAIL if bad(gpu, value) else Verdict.PASS,
            source=source,
        )
    if not judged:
        raise NotApplicable("no GPU here offers this reading")
