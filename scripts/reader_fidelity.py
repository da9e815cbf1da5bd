"""Whether the readers of pasted text lose or change what a report tells: ``python scripts/reader_fidelity.py FOLDER …``.

Each FOLDER holds real reports (``*.txt``, also one level down). Every field that ``tests/second_reading.py`` finds in a report is compared
with what the product read. Prints a table of the fields, and with ``--show FIELD`` each difference. Exits with 1 where fewer than 99 %
of a field's values are equal. Reports are no part of the repository; the result is in docs/verified.md.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
WANTED = 0.99
_WIDTH = 150


def reports(folders: list[Path]) -> list[Path]:
    return sorted(path for folder in folders for pattern in ("*.txt", "*/*.txt") for path in folder.glob(pattern))


def main() -> int:
    sys.path.insert(0, str(TESTS))
    from fidelity import OF_SNAPSHOT, compared

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--show", metavar="FIELD", default="")
    options = parser.parse_args()
    found: Counter[tuple[str, str]] = Counter()
    files = reports(options.folders)
    for path in files:
        for field, word, told, read in compared(path.read_text(errors="replace")):
            found[field, word] += 1
            if word != "equal" and options.show in (field, "all"):
                print(f"{path.stem}: {field} {word}: {str(told)[:_WIDTH]} | {str(read)[:_WIDTH]}")
    print(f"{len(files)} reports\n\n| field | told | equal | lost | differs | equal, % |\n|---|---|---|---|---|---|")
    low = 0
    for field in OF_SNAPSHOT:
        equal, lost, differs = (found[field, word] for word in ("equal", "lost", "differs"))
        told = equal + lost + differs
        if told:
            low += equal < WANTED * told
            print(f"| {field} | {told} | {equal} | {lost} | {differs} | {100 * equal / told:.1f} |")
    return 1 if low or not files else 0


if __name__ == "__main__":
    sys.exit(main())
