"""``python -m torchtune_sys.gen write`` renews the generated files of a checkout, ``check`` fails if one is not current."""

from __future__ import annotations

import sys
from pathlib import Path

from torchtune_sys.gen.pages import OWN_FOLDERS, pages

USAGE = "usage: python -m torchtune_sys.gen write|check [CHECKOUT]"


def main(arguments: list[str]) -> int:
    if not 1 <= len(arguments) <= 2 or arguments[0] not in {"write", "check"}:
        print(USAGE, file=sys.stderr)
        return 2
    root = Path(arguments[1] if len(arguments) == 2 else ".")
    wanted = {root / name: text for name, text in pages().items()}
    left_over = [place for folder in OWN_FOLDERS for place in (root / folder).rglob("*.*") if place not in wanted]
    for place in left_over:
        if arguments[0] == "write":
            place.unlink()
        print(f"{place}: {'removed' if arguments[0] == 'write' else 'left over; run: python -m torchtune_sys.gen write'}")
    stale = [(place, text) for place, text in wanted.items() if _content(place) != text]
    for place, text in stale:
        if arguments[0] == "write":
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
        print(f"{place}: {'written' if arguments[0] == 'write' else 'not current; run: python -m torchtune_sys.gen write'}")
    return 1 if (stale or left_over) and arguments[0] == "check" else 0


def _content(place: Path) -> str | None:
    return place.read_text(encoding="utf-8") if place.exists() else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
