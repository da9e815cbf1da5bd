"""Host names as launchers take them: many in one short text, as ClusterShell and Slurm write and read them (``node[001-128,200]``)."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torchtune_sys.model.patterns import pattern
from torchtune_sys.model.steering import escaped

_NUMBERED = pattern(r"(.*?)(\d{1,19})(\D*)", re.DOTALL)


def host_word(name: str) -> str:
    """Return a host's name as a line may begin with it: a container's owner names his host ``export X=…``, which a scheduler takes from a hook's output.

    >>> print(host_word("n1.example"), host_word("export X=1"), host_word("<0>|a"))
    n1.example export\\x20X\\x3d1 \\x3c0\\x3e\\x7ca
    """
    return name if is_host_name(name) else "".join(sign if sign.isalnum() or sign in "_.-" else escaped(sign) for sign in name)


def is_host_name(text: str) -> bool:
    """Return whether a launcher can be given it: letters, digits, ``.``, ``-`` and ``_``, no option.

    >>> is_host_name("n1.example"), is_host_name("--all"), is_host_name("n1\\nn2"), is_host_name("node 3 (rank 3)")
    (True, False, False, False)
    """
    return re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,252}", text) is not None


def node_set(names: Iterable[str]) -> str:
    """Return names of hosts as one set, in the form of Slurm and ClusterShell.

    >>> node_set(["n1", "n2", "n3", "n7", "login", "rack3-n08", "rack3-n09", "rack3-n10"])
    'login,n[1-3,7],rack3-n[08-10]'
    >>> node_set(f"n{number}" for number in (8, 9, 10, 11, 99, 100))
    'n[8-11,99-100]'
    >>> node_set(f"n{number}" for number in range(12))
    'n[0-11]'
    """
    plain: list[str] = []
    numbered: dict[tuple[str, str, int], list[int]] = {}
    for name in names:
        found = _NUMBERED.fullmatch(name)
        if found is None:
            plain.append(name)
            continue
        before, digits, after = found.groups()
        width = len(digits) if len(digits) > 1 else 0
        numbered.setdefault((before, after, width), []).append(int(digits))
    _join_widths(numbered)
    ranges = [f"{before}{_ranges(numbers, width)}{after}" for (before, after, width), numbers in numbered.items()]
    return ",".join(sorted([*plain, *ranges]))


def _join_widths(numbered: dict[tuple[str, str, int], list[int]]) -> None:
    """n9 and n10 are written alike, without zeros; n09 and n10 with."""
    for before, after, width in sorted(numbered):
        if (before, after, width) not in numbered:  # joined already
            continue
        wider = (before, after, width + 1 if width else 2)
        if width == 0 or (width > 1 and min(numbered[before, after, width]) >= 10 ** (width - 1)):
            while wider in numbered and min(numbered[wider]) >= 10 ** (wider[2] - 1):
                numbered.setdefault((before, after, 0), []).extend(numbered.pop(wider))
                wider = (before, after, wider[2] + 1)
            if width and (before, after, 0) in numbered:
                numbered[before, after, 0].extend(numbered.pop((before, after, width)))


def _ranges(numbers: list[int], width: int) -> str:
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    text = ",".join(f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in runs)
    return text if len(runs) == 1 and runs[0][0] == runs[0][1] else f"[{text}]"
