"""The C library's words for errors and signals in other languages: ``python scripts/catalogue/translations.py FOLDER > …/data/libc_words.csv``.

FOLDER is usr/share/locale of Debian's package libc-l10n, unpacked (``apt-get download libc-l10n; dpkg -x``).
"""

from __future__ import annotations

import csv
import gettext
import sys
from pathlib import Path

from torchtune_sys.knowledge.libc_words import ENGLISH

_SHORTEST = 8
"""Letters of a translation in an alphabet; shorter ones are words that texts have for other reasons."""


def main() -> int:
    found: dict[str, str] = {}
    for path in sorted(Path(sys.argv[1]).glob("*/LC_MESSAGES/libc.mo")):
        with path.open("rb") as file:
            translated = gettext.GNUTranslations(file)
        for english in ENGLISH:
            words = translated.gettext(english)
            if words.lower() != english.lower() and (len(words) >= _SHORTEST or min(words) > "\u2e80"):
                found.setdefault(words, english)
    ambiguous = {
        words for words in found if any(other != words and other in words and found[other] != found[words] for other in found)
    }
    print(
        "# What glibc says in other languages, out of its translations (Debian's libc-l10n 2.36; scripts/catalogue/translations.py)."
    )
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("english", "words"))
    writer.writerows(sorted((english, words) for words, english in found.items() if words not in ambiguous))
    return 0


if __name__ == "__main__":
    sys.exit(main())
