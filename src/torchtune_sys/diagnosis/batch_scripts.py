"""Find, in a Slurm script that is pasted, a launch that starts more or fewer ranks than there are GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec.structs import replace

from torchtune_sys.diagnosis.symptoms import LIKELY, POSSIBLE, Candidate, Symptom
from torchtune_sys.diagnosis.text.lines import LogLine
from torchtune_sys.model.numbers import natural
from torchtune_sys.model.patterns import pattern

_OPTION = pattern(r"^\W{0,2}#SBATCH +(?P<name>-n|-N|--[a-z-]{4,20})[ =]*(?P<value>[\w:.,/=-]{1,80})")
_GPUS = pattern(r"^(?:gpu:)?(?:[A-Za-z][\w.-]*:)?(\d{1,2})(?:,|$|\()")
_LAUNCHED = pattern(
    r"^\W{0,4}srun\b(?P<options>.{0,300}?)\b(?:torchrun|python3? +-m +torch\.distributed\.(?:run|launch))\b.{0,300}?--nproc[_-]per[_-]node[ =](?P<each>\d{1,2})\b"
)
_PLAIN = pattern(r"^\W{0,4}srun\b(?P<options>[^|;&]{0,200}?)\bpython3? +(?!-m\b)(?:-\w )?[\w./${}-]{1,120}\.py\b")
_TASKS = pattern(r"(?:^| )(?:-n ?|--ntasks[ =]|--ntasks-per-node[ =])(\d{1,5})\b")
_DATA_PARALLEL = pattern(
    r"(?:strategy|accelerator|distributed_backend)\W{1,4}(?:\w+\.)*(?:ddp|fsdp|deepspeed)|DDPStrategy|DistributedDataParallel|init_process_group|\bworld_size\b|\bSLURM_PROCID\b"
)
"""What only a program of several ranks has: one process with several GPUs is right for others."""
_LONGEST = 500


def symptoms_of(lines: Mapping[str, Sequence[LogLine]]) -> Iterator[Symptom]:
    for source, part in lines.items():
        if not any("#SBATCH" in line.text for line in part):
            continue
        options = _options(part)
        tasks, gpus = _tasks_per_node(options), _gpus_per_node(options)
        for line in part:
            words = line.text[:_LONGEST]
            if "srun" not in words:
                continue
            launched, plain = _LAUNCHED.search(words), _PLAIN.search(words)
            if launched is not None and tasks > 1 and int(launched["each"]) > 1 and not _TASKS.search(launched["options"]):
                yield _symptom(source, line, f"{tasks} tasks per node, each of which starts {launched['each']} ranks", LIKELY)
            elif plain is not None and gpus > tasks == 1 and not _TASKS.search(plain["options"]) and _is_data_parallel(part):
                yield _symptom(source, line, f"1 task a node for {gpus} GPUs", POSSIBLE)


def _options(lines: Sequence[LogLine]) -> dict[str, str]:
    found = (_OPTION.match(line.text[:_LONGEST]) for line in lines if "#SBATCH" in line.text)
    return {one["name"]: one["value"] for one in found if one is not None}


def _tasks_per_node(options: Mapping[str, str]) -> int:
    """1 where nothing says it, as sbatch does."""
    per_node = natural(options.get("--ntasks-per-node", ""))
    if per_node is not None:
        return per_node
    tasks = natural(options.get("--ntasks", options.get("-n", "1")))
    nodes = natural(options.get("--nodes", options.get("-N", "1")))
    return max(tasks // nodes, 1) if tasks and nodes else 1


def _gpus_per_node(options: Mapping[str, str]) -> int:
    for name in ("--gpus-per-node", "--gres"):
        found = _GPUS.match(options.get(name, ""))
        if found is not None:
            return int(found[1])
    return 0


def _is_data_parallel(lines: Sequence[LogLine]) -> bool:
    return any(_DATA_PARALLEL.search(line.text[:_LONGEST]) for line in lines)


def _symptom(source: str, line: LogLine, how: str, weight: int) -> Symptom:
    return Symptom(
        source=source,
        line=replace(line, text=f"{line.text[:300]} ({how})"),
        candidates=(Candidate(cause="job-launch-nested-wrongly", weight=weight),),
        program="Slurm",
        words="sbatch(1): --ntasks-per-node; srun(1) starts each task once",
    )
