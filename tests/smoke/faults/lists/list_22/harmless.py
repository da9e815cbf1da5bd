"""What is odd and breaks nothing."""

from __future__ import annotations

from smoke.faults.bench import Bench
from smoke.faults.means import all_of, limited, unshared, variables
from smoke.faults.row import Fault, Inject
from smoke.faults.short import row

STAGES = "device,gemm,train,dataloader,checkpoint,rendezvous,allreduce,ddp,checkpoint-sharded"


def _place(name: str) -> Inject:
    def inject(bench: Bench) -> None:
        (bench.folder / name).mkdir()
        bench.env["TMPDIR"] = str(bench.folder / name)

    return inject


_WAYS: tuple[tuple[str, str, str, Inject], ...] = (
    ("place-of-many-words", "TMPDIR has a blank, a comma, a colon and an umlaut in its name", "environment", _place("my files, für: alle")),
    ("no-sysfs", "/sys is empty, as in some sandboxes", "namespace", unshared("-m --propagation private", "mount -t tmpfs tmpfs /sys")),
    ("any-stack", "The stack has no limit (ulimit -s unlimited)", "rlimit", limited("--stack=unlimited:unlimited")),
    ("optimised", "Python leaves out assertions and docstrings (PYTHONOPTIMIZE=2)", "environment", variables(PYTHONOPTIMIZE="2")),
    ("slow-enough", "A shaper leaves ranks of one host 2 Gbit/s", "namespace", unshared("--net", "ip link set lo up\ntc qdisc add dev lo root tbf rate 2gbit burst 4m latency 400ms")),
    ("bound-at-once", "Libraries are bound as they are loaded, unbuffered output, safe path", "environment", variables(LD_BIND_NOW="1", PYTHONUNBUFFERED="1", PYTHONSAFEPATH="1")),
    ("nice-user", "The whole runs at nice 19 and may not lock memory", "rlimit", all_of(limited("--memlock=0:0"), lambda bench: bench.before.extend(["nice", "-n", "19"]))),
)  # fmt: skip

ROWS: tuple[Fault, ...] = tuple(
    row(name, what, "", "", inject=inject, means=means, stages=STAGES) for name, what, means, inject in _WAYS
)
