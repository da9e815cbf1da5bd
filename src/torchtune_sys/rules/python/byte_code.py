"""Byte code: what Python makes of a module's source at the first import, and keeps beside it."""

from __future__ import annotations

from collections.abc import Iterator

from torchtune_sys.model.actions import Advice, EnvironmentVariable
from torchtune_sys.model.rule import Evidence, Params, Severity, Verdict, rule, unsure
from torchtune_sys.model.snapshot import Snapshot
from torchtune_sys.model.values import Missing, NotApplicable, need
from torchtune_sys.rules.gates import torch_build

_NEVER_WRITTEN = "PYTHONDONTWRITEBYTECODE"
_ELSEWHERE = "PYTHONPYCACHEPREFIX"
_COMPILE = Advice(
    text="compile once where the environment is made: python -m compileall -q -j 0 SITE-PACKAGES (pip does it; uv with --compile-bytecode or UV_COMPILE_BYTECODE=1)"
)


@rule(
    id="python-byte-code-missing",
    title="torch's Python bytecode is not cached, so every process compiles it again",
    severity=Severity.ADVICE,
    fix=(
        EnvironmentVariable(name=_NEVER_WRITTEN, value=None),
        _COMPILE,
    ),
)
def python_byte_code_missing(s: Snapshot, _p: Params) -> Iterator[Evidence]:
    """torch is installed without byte code (.pyc files), and none is written at the first import: PYTHONDONTWRITEBYTECODE is set, or the directory is
    not writable.

    Images often set that variable, and uv does not compile what it installs.

    Why it matters
        Every process compiles the source of each module that it imports: each rank, each DataLoader worker that is spawned, each worker of
        torch.compile. On a host with an H100 "import torch" (2.11) took 6.4 s without byte code and 1.8 s with it (docs/verified.md).

    When to leave it
        Processes start rarely, and a few seconds do not matter.

    References
        https://docs.python.org/3/using/cmdline.html#envvar-PYTHONDONTWRITEBYTECODE
        https://docs.astral.sh/uv/guides/integration/docker/#compiling-bytecode
    """
    build = torch_build(s)
    env = need(need(s.session).env)
    if env.get(_ELSEWHERE):
        raise NotApplicable(f"{_ELSEWHERE} keeps byte code in another place")
    python = need(s.python)
    subject, wanted = f"byte code of torch {build.version}", "there, or written at the first import"
    if need(python.byte_code):
        yield Evidence(subject=subject, seen="there", wanted=wanted, verdict=Verdict.PASS, source=build.location)
    elif env.get(_NEVER_WRITTEN):
        yield Evidence(subject=subject, seen=f"none, and {_NEVER_WRITTEN} is set", wanted=wanted, source=build.location)
    elif isinstance(python.byte_code_writable, Missing):
        yield unsure(subject, python.byte_code_writable, wanted)
    else:
        writable = python.byte_code_writable
        seen = "none yet; the first import writes it" if writable else f"none, and this user may not write to {build.location}"
        verdict, fix = (Verdict.PASS, ()) if writable else (Verdict.FAIL, (_COMPILE,))
        yield Evidence(subject=subject, seen=seen, wanted=wanted, verdict=verdict, source=build.location, fix=fix)
