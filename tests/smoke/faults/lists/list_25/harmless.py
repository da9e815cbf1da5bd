"""What is odd and breaks nothing."""

from __future__ import annotations

from smoke.faults.means import all_of, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row

STAGES = "device,gemm,stress,layers,optimizer,train,amp-bf16,dataloader,checkpoint,rendezvous,allreduce,stragglers,ddp,checkpoint-sharded"

_WAYS: tuple[tuple[str, str, Inject], ...] = (
    ("development-mode", "Python's development mode (PYTHONDEVMODE=1) shows warnings and looks at memory", variables(PYTHONDEVMODE="1")),
    ("one-arena", "One arena of malloc for all threads, and libraries that are bound at once", variables(MALLOC_ARENA_MAX="1", LD_BIND_NOW="1")),
    ("other-language", "The language is Turkish, whose i has another capital, and the time zone is 12:45 hours ahead", variables(LANG="tr_TR.UTF-8", LC_ALL="tr_TR.UTF-8", TZ="Pacific/Chatham")),
    ("folder-with-spaces", "The directory for temporary files has spaces, quotes and letters beyond ASCII in its name",
        all_of(lambda bench: (bench.folder / "a 'job' \u00fc 17").mkdir(), variables(TMPDIR="{folder}/a 'job' \u00fc 17"))),
)  # fmt: skip

ROWS: tuple[Fault, ...] = tuple(
    row(name, what, "", "", inject=inject, means="environment", stages=STAGES) for name, what, inject in _WAYS
)
