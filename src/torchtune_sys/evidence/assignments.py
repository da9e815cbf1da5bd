"""Environment variables as people paste them: env(1) and ``declare -x``, command lines, scripts, options of launchers, and NCCL's own log.

A variable that is given two values (two nodes, before and after) is left out: which of them a failure had is not known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from torchtune_sys.model.patterns import pattern

_NAME = r"[A-Za-z_][A-Za-z0-9_]{1,60}"
_VALUE = r"\"[^\"]{0,2000}\"|'[^']{0,2000}'|[^\s\"';&|]{0,2000}"
_PLAIN = pattern(r"^[\s>|$]*([A-Z_][A-Z0-9_]{1,60})=(.*)$")
_DECLARED = pattern(rf"^[\s>|$+#]{{0,8}}(?:declare -x|export|setenv|ENV) +({_NAME})[= ]({_VALUE})")
_LAUNCHED = pattern(
    rf"^[\s>|$+#]{{0,8}}(?:\S{{1,40}}[$#%] )?(?:env +)?((?:[A-Z_][A-Z0-9_]{{1,60}}=(?:{_VALUE}) +)+)"
    r"(?:\S{0,200}/)?(?:torchrun|python[\d.]*|accelerate|deepspeed|srun|mpirun|mpiexec|horovodrun|ray|vllm|colossalai|llamafactory-cli|bash|sh)\b"
)
_ASSIGNED = pattern(rf"([A-Z_][A-Z0-9_]{{1,60}})=({_VALUE})")
_ALONE = pattern(rf"\s*[A-Z_][A-Z0-9_]{{1,60}}=(?:{_VALUE})\s*")
_OPTION = pattern(rf"(?<!\S)(?:-x|-e|--env|-genv)[ =]([A-Z_][A-Z0-9_]{{1,60}})[= ]({_VALUE})(?=\s|$)")
_OF_LAUNCHERS = pattern(r"\b(?:mpirun|mpiexec|docker|podman|nerdctl)\b")
_OF_NCCL = pattern(rf"NCCL INFO ({_NAME}) set by environment to (\S{{1,2000}}?)\.?$")
_OF_SHELLS = frozenset(("PATH", "HOME", "PWD", "SHLVL", "HOSTNAME", "SHELL"))
"""Which of them any process has."""
_DUMP, _MARKERS = 5, 2
"""Lines, and variables of a shell among them, that make a list of assignments an environment."""


def assignments(lines: Iterable[str], whole: bool) -> dict[str, str]:
    """Return what each variable is set to. ``whole``: a report says itself that it lists the environment.

    >>> assignments(["$ NCCL_SOCKET_IFNAME=lo NCCL_DEBUG=INFO torchrun --nnodes 2 train.py"], False)
    {'NCCL_SOCKET_IFNAME': 'lo', 'NCCL_DEBUG': 'INFO'}
    >>> assignments(["n1:7:7 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1."], False)
    {'NCCL_IB_DISABLE': '1'}
    >>> assignments(["$ env | grep NCCL", "NCCL_DEBUG=WARN", "NCCL_IB_DISABLE=1"], False), assignments(["A=1", "loss=0.3"], False)
    ({'NCCL_DEBUG': 'WARN', 'NCCL_IB_DISABLE': '1'}, {})
    >>> assignments(["export WORLD_SIZE=$(($NNODES * 8))", "export RANK=0"], False)
    {'RANK': '0'}
    >>> assignments(["it hangs", "u@n1:~$ env | grep NCCL_S", "NCCL_SOCKET_IFNAME=ib0", "", "NCCL_DEBUG=INFO", "$ echo $RANK", "3"], False)
    {'NCCL_SOCKET_IFNAME': 'ib0', 'RANK': '3'}
    """
    plain: list[tuple[str, str]] = []
    pairs: list[tuple[str, str]] = []
    lines = list(lines)
    for line in lines:
        if len(line) > _LONGEST or (
            "=" not in line and "set by environment" not in line and "setenv" not in line and "ENV " not in line
        ):
            continue
        pairs += _of_line(line)
        if found := _PLAIN.match(line):
            plain.append((found[1], found[2]))
    pairs += _of_commands(lines)
    names = {name for name, _ in plain}
    if whole or (len(plain) >= _DUMP and len(names & _OF_SHELLS) >= _MARKERS) or (_of_training(names) and _nothing_else(lines)):
        pairs += plain
    values: dict[str, set[str]] = {}
    for name, value in pairs:
        values.setdefault(name, set()).add(value.strip().strip("\"'"))
    return {name: next(iter(each)) for name, each in values.items() if len(each) == 1 and not any(map(_is_asked_for, each))}


def _is_asked_for(value: str) -> bool:
    """Return whether a command gives the value, of which the words are its beginning at most."""
    return "$(" in value or "`" in value


_LONGEST = 8000
_PRINTED = pattern(r"^\S{0,60}\s?[$#>%]\s{0,4}(?:env|printenv|set|cat)\b")
"""The command that printed them, behind a shell's prompt."""


_PROMPT = r"(?:\[[^\]\n]{1,60}\]|[\w.@:~/+() -]{1,80})? ?[$#%>] {0,4}"
_LISTED = pattern(
    rf"(?:{_PROMPT}(?:[\w./@:=-]{{1,80}} ){{0,12}})?(?:env|printenv)(?: *\| *(?:sort|uniq|(?:e|z|f)?grep|rg|ag|awk|head|tail|sed)\b[^\n]{{0,200}})?"
    r"|(?:={3,} ?|-{3,} ?|#{1,6} |\*\*|==> )?(?:[Rr]elevant |NCCL )?(?:[Ee]nv(?:ironment)? ?[Vv]ar(?:iable)?s|env)(?: ?={3,}| ?-{3,}|:?\*\*| <==)?:?"
)
"""A command that prints variables, or a heading above them."""
_ASKED = pattern(rf"{_PROMPT}echo +\"?\$\{{?([A-Z_][A-Z0-9_]{{1,60}})\}}?\"?")
_FENCE = pattern(r"\s*(?:```\w{0,12})?\s*")
_LISTED_AT_MOST = 500


def _of_commands(lines: list[str]) -> Iterator[tuple[str, str]]:
    """Yield what stands below a command that prints variables (``env | grep NCCL``), up to the first line that is none."""
    for at, line in enumerate(lines):
        if len(line) > _WIDEST_COMMAND or not ("env" in line or "echo" in line or "vars" in line or "ariables" in line):
            continue
        if (asked := _ASKED.fullmatch(line.strip())) and at + 1 < len(lines) and _SHOWN.fullmatch(lines[at + 1]):
            yield asked[1], lines[at + 1]
        if not _LISTED.fullmatch(line.strip()):
            continue
        start = at + 1
        while start < len(lines) and start <= at + 2 and _FENCE.fullmatch(lines[start]):
            start += 1
        for below in lines[start : start + _LISTED_AT_MOST]:
            if len(below) > _LONGEST or not (found := _PLAIN.match(below)):
                break
            yield found[1], found[2]


_WIDEST_COMMAND = 400
_SHOWN = pattern(r"[\w.,:/@+=-]{1,200}")
"""A value as echo prints it; an empty line may be an empty value, or none."""


def _of_training(names: set[str]) -> bool:
    """Return whether a variable among them is one that only training, its libraries or its launchers read."""
    from torchtune_sys.host.environment import PREFIXES

    return any(name.startswith((*PREFIXES, "MASTER_")) for name in names)


def _nothing_else(lines: list[str]) -> bool:
    """Return whether a text is a list of assignments and no more (a part of the environment, a file of variables): only comments, and the command
    that printed it, stand beside them."""
    told = [line for line in lines if line.strip() and not line.lstrip().startswith("# ") and not _PRINTED.match(line)]
    return all(_ALONE.fullmatch(line) or _DECLARED.match(line) for line in told)


def _of_line(line: str) -> Iterator[tuple[str, str]]:
    if found := _DECLARED.match(line):
        yield found[1], found[2]
    elif found := _LAUNCHED.match(line):
        yield from ((each[1], each[2]) for each in _ASSIGNED.finditer(found[1]))
    elif found := _OF_NCCL.search(line):
        yield found[1], found[2]
    if _OF_LAUNCHERS.search(line):
        yield from ((each[1], each[2]) for each in _OPTION.finditer(line))
