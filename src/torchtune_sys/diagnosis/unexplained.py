"""Quote errors that nothing explains, with the program and the place."""

from __future__ import annotations

import re
from collections.abc import Sequence

from torchtune_sys.diagnosis.lines import LogLine
from torchtune_sys.diagnosis.symptoms import Symptom
from torchtune_sys.host.secrets import scrubbed
from torchtune_sys.model.diagnosis import Unexplained

_MOST, _TEXT = 3, 400
_PASTE = 12
"""Lines up to which a text is what somebody cut out of a failure: the error's own line is enough there, without the frames above it. In longer
texts people also speak of errors."""
_RAISED = re.compile(r"^(?P<name>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure))\b(?::|$)")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"\n]{1,300})", line (?P<line>\d{1,7})(?:, in (?P<function>[^\n]{1,120}))?')
_DEATHS: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (program, re.compile(pattern))
    for program, pattern in (
        ("python", r"Fatal Python error: "),
        ("C++", r"terminate called after throwing|what\(\):  "),
        ("CUDA", r"(?:torch\.AcceleratorError: )?CUDA error: |CUDA failure|Cuda failure"),
        ("NCCL", r"NCCL WARN |NCCL error "),
        ("shell", r"Segmentation fault|Aborted \(core dumped\)|Bus error|Illegal instruction"),
        (
            "docker",
            r"^docker: Error response from daemon|^Error response from daemon|^Error: OCI runtime|OCI runtime create failed|permission denied while trying to connect to the Docker daemon"
            r"|Cannot connect to the Docker daemon|\bexec(?: user process caused| /\S{1,200})?: exec format error",
        ),
        ("Slurm", r"^(?:srun|sbatch|slurmstepd): error: "),
        (
            "MPI",
            r"^(?:mpirun|mpiexec|prterun|prun) (?:was unable|noticed|detected|has exited)|^Primary job  ?terminated normally, but|^MPI_ABORT was invoked",
        ),
        ("nvidia-container-cli", r"nvidia-container-cli(?:\.real)?: "),
        ("pip", r"^ERROR: |^error: (?:subprocess-exited|externally-managed|metadata-generation)"),
        ("apt", r"^E: [A-Z][\w ']|^ ?\S{2,60} : (?:Pre)?Depends: |^dpkg: error |^Errors were encountered while processing"),
        ("dnf", r"^Error: (?:Unable to find a match|Failed to|Transaction|\s*$)|^ Problem: "),
        ("conda", r"^(?:LibMambaUnsatisfiable|PackagesNotFound|Unsatisfiable|Conda\w{0,20})Error: |^ResolvePackageNotFound:"),
        ("pacman", r"^error: (?:unable to satisfy|failed to (?:prepare|commit))"),
        ("cuda-installer", r"^\[ERROR\]: "),
        ("CMake", r"^CMake Error"),
        ("glibc", r"^FATAL: kernel too old"),
        ("gcc", r": (?:fatal )?error: |^collect2: error"),
        ("NVIDIA driver", r"NVRM: (?:Xid|GPU .*(?:failed|error)|.*Assertion failed)"),
        ("Kubernetes", r"^\s*(?:Warning|Error)\s+(?:Failed|BackOff|FailedScheduling|FailedMount|Unhealthy)\b"),
    )
)


def unexplained_of(lines: dict[str, Sequence[LogLine]], symptoms: Sequence[Symptom]) -> tuple[Unexplained, ...]:
    """Return the first errors of each text that no cause explains; where all follow from others, and nothing is named, the first of these."""
    following = {(symptom.source, symptom.line.number) for symptom in symptoms if symptom.consequence}
    known = {(symptom.source, symptom.line.number): symptom for symptom in symptoms if not symptom.candidates}
    named = {(symptom.source, symptom.line.number) for symptom in symptoms if symptom.candidates}
    first: list[Unexplained] = []
    after: list[Unexplained] = []
    for source, part in lines.items():
        for place, line, program in _errors(part, source, known):
            found = Unexplained(
                source=source,
                line=line.number,
                text=scrubbed(line.text)[:_TEXT].strip(),
                program=program,
                place=place,
                fix=known[source, line.number].remedy if (source, line.number) in known else "",
                hosts=(line.host,) if line.host else (),
                ranks=(line.rank,) if line.rank is not None else (),
            )
            if (source, line.number) in named:
                continue
            (after if (source, line.number) in following else first).append(found)
    return tuple(_distinct(first or ([] if named else after[:1])))[:_MOST]


def _errors(lines: Sequence[LogLine], source: str, known: dict[tuple[str, int], Symptom]) -> list[tuple[str, LogLine, str]]:
    frame = ""
    found = []
    for line in lines:
        at = _FRAME.match(line.text)
        if at is not None:
            frame = f"{at['file']}:{at['line']}" + (f" in {at['function']}" if at["function"] else "")
            continue
        raised = _RAISED.match(line.text)
        if raised is not None and (frame or len(lines) <= _PASTE):
            found.append((frame, line, raised["name"].partition(".")[0] if "." in raised["name"] else "python"))
            frame = ""
            continue
        program = next((name for name, pattern in _DEATHS if pattern.search(line.text[:_TEXT])), "")
        message = known.get((source, line.number))
        if program or (message is not None and not message.remedy and (message.program or not message.consequence)):
            found.append(("", line, program or (message.program if message is not None else "")))
    return found


def _distinct(found: list[Unexplained]) -> list[Unexplained]:
    return list({re.sub(r"\d+", "0", item.text): item for item in reversed(found)}.values())[::-1]
