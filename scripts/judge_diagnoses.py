"""What ``diagnose`` says of reports with known causes: ``python scripts/judge_diagnoses.py CASES [--changed wrapped|…]``.

CASES holds one folder per report, as for ``judge_reports.py``: ``input.txt``, and ``case.json`` with its ``cause`` (``none``: healthy; ``unknown``: not told), and in ``accept`` others that
what was pasted cannot tell from it; or it is a file like ``tests/diagnose/written.txt``, of which ``--set`` chooses a part. Prints
the share of reports whose first cause, and whose first three, are right; how many are named wrongly; how often each confidence is
right; and the same for the perturbed texts of ``--changed``. Reports are no part of the repository.
"""

from __future__ import annotations

import argparse
import html
import io
import json
import random
import sys
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

from torchtune_sys.diagnosis.diagnose import diagnose
from torchtune_sys.fleet.pasted_hosts import compared
from torchtune_sys.host.input.collection import InputText
from torchtune_sys.host.input.excerpts import excerpt
from torchtune_sys.model.diagnosis import Diagnosis


def _hard(text: str) -> str:
    return "\n".join(line[at : at + 80] for line in text.split("\n") for at in range(0, max(len(line), 1), 80))


def _soft(text: str) -> str:
    return "\n".join(textwrap.fill(line, 80, break_long_words=False, replace_whitespace=False) for line in text.split("\n"))


def _cut(text: str) -> str:
    lines = text.split("\n")
    return "\n".join(
        line[3 : max(len(line) - 3, 3)] if number in (0, len(lines) - 1) else line for number, line in enumerate(lines)
    )


def _without(text: str, head: float = 0.0, tail: float = 0.0) -> str:
    """Return the text without these shares of its lines at its ends: what a scrolled terminal or a length limit leaves of a log."""
    lines = text.split("\n")
    return "\n".join(lines[int(len(lines) * head) : len(lines) - int(len(lines) * tail)])


def _columns(text: str, width: int) -> str:
    """Return the text with each line cut at the width, as a pager that does not wrap or a table's cell shows it."""
    return "\n".join(line[:width] for line in text.split("\n"))


def _interleaved(text: str) -> str:
    lines = text.split("\n")
    return "\n".join(f"[rank{rank}]: {line}" for line in lines for rank in (0, 1))


CHANGES: dict[str, Callable[[str], str]] = {
    "wrapped": _hard,
    "folded": _soft,
    "cut": _cut,
    "head10": lambda text: _without(text, head=0.1),
    "head30": lambda text: _without(text, head=0.3),
    "tail10": lambda text: _without(text, tail=0.1),
    "tail30": lambda text: _without(text, tail=0.3),
    "columns80": lambda text: _columns(text, 80),
    "columns120": lambda text: _columns(text, 120),
    "json": lambda text: json.dumps({"message": text}),
    "escaped": lambda text: json.dumps(text)[1:-1],
    "jsonl": lambda text: "\n".join(
        json.dumps({"log": line + "\n", "stream": "stderr", "time": "2025-01-01T00:00:00.1Z"}) for line in text.split("\n")
    ),
    "html": lambda text: "<div><pre><code>" + html.escape(text).replace("\n", "<br>") + "</code></pre></div>",
    "quoted": lambda text: "\n".join(f"> {line}" for line in text.split("\n")),
    "fenced": lambda text: f"<details><summary>log</summary>\n\n```shell\n{text}\n```\n</details>",
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "times": lambda text: "\n".join(f"2025-03-04T05:06:07.{number:06d}Z {line}" for number, line in enumerate(text.split("\n"))),
    "pods": lambda text: "\n".join(f"[pod/train-0/main] {line}" for line in text.split("\n")),
    "hosts": lambda text: "\n".join(f"node-12: {line}" for line in text.split("\n")),
    "srun": lambda text: "\n".join(f"3: {line}" for line in text.split("\n")),
    "labels": lambda text: "\n".join(f"0: {line}" for line in text.split("\n")),
    "logging": lambda text: "\n".join(f"2025-03-04 05:06:07,123 - INFO - trainer - {line}" for line in text.split("\n")),
    "docker": lambda text: "\n".join(
        f"2025-03-04T05:06:07.{number:09d}Z stderr F {line}" for number, line in enumerate(text.split("\n"))
    ),
    "levels": lambda text: "\n".join(f"ERROR:trainer: {line}" for line in text.split("\n")),
    "indented": lambda text: "\n".join(f"        {line}" for line in text.split("\n")),
    "coloured": lambda text: "\n".join(f"\x1b[31m{line}\x1b[0m" for line in text.split("\n")),
    "ranks": _interleaved,
    "rank": lambda text: "\n".join(f"[rank0]:{' ' * bool(line)}{line}" for line in text.split("\n")),
    "utf16": lambda text: text,
}
NOTHING = ("none", "unknown")
"""Labels of texts that tell no cause."""
WITHOUT_LINES = ("head10", "head30", "tail10", "tail30")
"""Changes that may leave out the very line that decided: what they lose by that is counted apart."""


def judged(text: str, name: str, encoding: str = "utf-8") -> Diagnosis:
    given = InputText(name=name, excerpt=excerpt(io.BytesIO(text.encode(encoding, "replace"))))
    return diagnose([given], compare=compared)


def interval(right: int, of: int) -> str:
    """The share with Wilson's interval of 95 %."""
    if not of:
        return "-"
    z, share = 1.96, right / of
    middle, half = share + z * z / (2 * of), z * (share * (1 - share) / of + z * z / (4 * of * of)) ** 0.5
    low, high = (middle - half) / (1 + z * z / of), (middle + half) / (1 + z * z / of)
    return f"{right}/{of} = {share:.0%} ({low:.0%} to {high:.0%})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path)
    parser.add_argument("--changed", action="store_true", help="also count what each perturbation loses")
    parser.add_argument("--set", help="of a file of reports, only those of this set")
    parser.add_argument("--quiet", action="store_true")
    options = parser.parse_args()
    random.seed(20)
    cases = written(options.cases.read_text(), options.set) if options.cases.is_file() else _folders(options.cases)
    found = {name: judged(text, name) for name, _, text in cases}
    _tell(cases, found, quiet=options.quiet)
    right = [case for case in cases if case[1][0] not in NOTHING and _right(case[1], found[case[0]])]
    for change, apply in CHANGES.items() if options.changed else ():
        encoding = "utf-16" if change == "utf16" else "utf-8"
        lost, gone = [], []
        for name, causes, text in right:
            changed = apply(text)
            if not _right(causes, judged(changed, name, encoding)):
                (lost if change not in WITHOUT_LINES or _still_says(found[name], changed) else gone).append(name)
        told = f", {len(gone)} more without a line that decided" if gone else ""
        print(f"{change:12}{len(lost):3} of {len(right)} lost{told}  {' '.join(lost[:12])}", flush=True)
    return 0


def _still_says(found: Diagnosis, changed: str) -> bool:
    """Return whether a line that decided stands whole in what is left of the text."""
    left = _squeezed(changed)
    return not found.causes or any(_squeezed(each.text) in left for each in found.causes[0].evidence)


def _squeezed(words: str) -> str:
    return "".join(words.split())


def written(text: str, chosen: str | None = None) -> list[tuple[str, tuple[str, ...], str]]:
    """Return the reports of a file in which each begins with a line ``@@@ ID SET CAUSE …``: ID, accepted causes, text."""
    reports = (each.split("\n", 1) for each in f"\n{text}".split("\n@@@ ")[1:])
    told = ((heading.split(), body) for heading, body in reports)
    return [(words[0], tuple(words[2:]), body) for words, body in told if chosen in (None, words[1])]


def _folders(cases: Path) -> list[tuple[str, tuple[str, ...], str]]:
    folders = sorted(path.parent for path in cases.glob("*/case.json"))
    return [(folder.name, _causes(folder), (folder / "input.txt").read_text(errors="replace")) for folder in folders]


def _names(found: Diagnosis) -> list[str]:
    return [cause.cause for cause in found.causes]


def _causes(folder: Path) -> tuple[str, ...]:
    case = json.loads((folder / "case.json").read_text())
    return tuple(dict.fromkeys((case["cause"], *case.get("accept", ()))))


def _right(causes: tuple[str, ...], found: Diagnosis) -> bool:
    return found.causes[0].cause in causes if found.causes else causes[0] in NOTHING


def _tell(cases: list[tuple[str, tuple[str, ...], str]], found: dict[str, Diagnosis], *, quiet: bool) -> None:
    words: Counter[str] = Counter()
    sure: dict[str, Counter[bool]] = defaultdict(Counter)
    of_cause: dict[str, list[bool]] = defaultdict(list)
    for name, accepted, _ in cases:
        diagnosis, named, cause = found[name], _names(found[name]), accepted[0]
        good = _right(accepted, diagnosis)
        third = cause in NOTHING or not set(accepted).isdisjoint(named[:3])
        word = (
            "right"
            if good
            else "FALSE ALARM"
            if cause in NOTHING
            else "third"
            if third
            else "WRONG"
            if named
            else "unexplained"
            if diagnosis.unexplained
            else "silent"
        )
        words[word] += 1
        words["faults"] += cause not in NOTHING
        words["top3"] += cause not in NOTHING and third
        words["named"] += cause not in NOTHING and bool(named)
        if named and cause not in NOTHING:
            sure[diagnosis.causes[0].confidence.value][good] += 1
        if cause not in NOTHING:
            of_cause[cause].append(good)
        if not quiet and word != "right":
            shown = [f"{each.cause}/{each.confidence.value[0]}" for each in diagnosis.causes[:4]] or [
                each.text[:80] for each in diagnosis.unexplained
            ]
            print(f"{word:12}{name:24}{cause:36}{', '.join(shown)}")
    faults = words["faults"]
    right = sum(sum(each) for each in of_cause.values())
    print(
        f"first cause right: {interval(right, faults)}; macro over {len(of_cause)} causes: {sum(sum(each) / len(each) for each in of_cause.values()) / max(len(of_cause), 1):.1%}"
    )
    print(f"among the first three: {interval(words['top3'], faults)}")
    print(
        f"named wrongly: {words['WRONG'] + words['third']} of {words['named']} named; silent {words['silent']}, unexplained {words['unexplained']}"
    )
    print(f"healthy reports accused: {words['FALSE ALARM']} of {len(cases) - faults}")
    for confidence, count in sorted(sure.items()):
        print(f"{confidence:10}right {interval(count[True], sum(count.values()))}")


if __name__ == "__main__":
    sys.exit(main())
