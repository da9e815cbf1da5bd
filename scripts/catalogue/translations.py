"""What programs of a distribution say in other languages: ``python scripts/catalogue/translations.py FOLDER > …/data/translations.csv``.

FOLDER is usr/share/locale of Debian's packages apt, bash, binutils-common, dpkg, gcc-12-locales, libapt-pkg6.0 and libc-l10n, unpacked into one folder
(``apt-get download``; ``dpkg -x``).
"""

from __future__ import annotations

import csv
import gettext
import re
import sys
from pathlib import Path

from torchtune_sys.knowledge.translations import ERRORS, is_short

_LIBRARY = (
    *ERRORS, "Read-only file system", "File too large", "Bus error", "Illegal instruction", "Killed", "Segmentation fault",
    "Name or service not known", "Temporary failure in name resolution", "No address associated with hostname",
    "cannot open shared object file", "error while loading shared libraries", "symbol lookup error",
    "cannot allocate memory in static TLS block", "invalid ELF header", "file too short",
)  # fmt: skip
_MESSAGES = {
    "libc": _LIBRARY,
    "bash": ("%s: command not found", " (core dumped)", "%s: cannot execute binary file: %s"),
    "gcc-12": ("fatal error: ", "cannot execute %qs: %s", "unrecognized command-line option %qs", "%s signal terminated program %s"),
    "ld": ("%P: cannot find %s\n", "%P: cannot find %s: %E\n"),
    "apt": (
        "Unable to locate package %s", "Package '%s' has no installation candidate", "The following packages have unmet dependencies:",
        "Unmet dependencies. Try 'apt --fix-broken install' with no packages (or specify a solution).", "Could not resolve '%s'",
        "The following signatures couldn't be verified because the public key is not available:\n", "but it is not installable",
        "but it is not going to be installed", "You don't have enough free space in %s.",
    ),
    "libapt-pkg6.0": (
        "Could not get lock %s", "Could not get lock %s. It is held by process %d", "Could not get lock %s. It is held by process %d (%s)",
        "Unable to acquire the dpkg frontend lock (%s), is another process using it?", "Hash Sum mismatch", "The repository '%s' is not signed.",
        "Unable to lock the administration directory (%s), is another process using it?", "The repository '%s' does not have a Release file.",
        "Unable to correct problems, you have held broken packages.", "Sub-process %s returned an error code (%u)", "Unable to lock directory %s",
        "Release file for %s is not valid yet (invalid for another %s). Updates for this repository will not be applied.",
        "dpkg was interrupted, you must manually run '%s' to correct the problem. ", "Waiting for cache lock: %s",
    ),
    "dpkg": (
        "error processing package %s (--%s):\n %s", "%s subprocess returned error exit status %d", "installed %s package %s script",
        "%s was locked by another process\n%s", "%s was locked by another process with pid %d\n%s",
        "dependency problems prevent configuration of %s:\n%s",
    ),
}  # fmt: skip
"""The first line of each is taken; the names are those of the programs' catalogues."""
_PRINTF = re.compile(r"%(?:(\d)\$)?[-+ 0#.\d]*l{0,2}(?:q?[sduE])")
_LETTERS = 4


def _with_holes(words: str) -> str:
    """Return printf's format with numbered holes: the first line, as a program prints it."""
    number = iter(range(1, 9))
    words = words.split("\n", 1)[0].replace("%P", "ld").replace("%%", "%")
    return _PRINTF.sub(lambda found: f"{{{found[1] or next(number)}}}", words).strip()


def _is_telling(words: str) -> bool:
    longest = max(re.split(r"\{\d\}", words), key=len)
    return len(longest.strip()) >= _LETTERS or min(longest or " ") > "\u2e80"


def main() -> int:
    found: dict[str, str] = {}
    for catalogue, messages in _MESSAGES.items():
        for path in sorted(Path(sys.argv[1]).glob(f"*/LC_MESSAGES/{catalogue}.mo")):
            with path.open("rb") as file:
                translated = gettext.GNUTranslations(file)
            for message in messages:
                words, english = _with_holes(translated.gettext(message)), _with_holes(message.replace("%qs", "'%s'"))
                is_one_word = is_short(words) and message != "Killed"
                if words.lower() != _with_holes(message).lower() and _is_telling(words) and not is_one_word:
                    found.setdefault(words, english)
    ambiguous = {
        words for words in found if any(other != words and other in words and found[other] != found[words] for other in found)
    }
    print(
        f"# What {', '.join(_MESSAGES)} say in other languages, out of their translations (Debian 12; scripts/catalogue/translations.py)."
    )
    print("# {1}: what the message names first.")
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(("english", "words"))
    writer.writerows(sorted((english, words) for words, english in found.items() if words not in ambiguous or "{" in english))
    return 0


if __name__ == "__main__":
    sys.exit(main())
