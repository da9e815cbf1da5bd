"""What a failed operation stands for: the same words with another error number have another cause.

``data/operations.csv`` has the operations as programs name them, ``data/operation_errors.csv`` the causes by error. ``sentences`` tries both.
"""

from __future__ import annotations

import functools
import re

from torchtune_sys.knowledge import tables

ERRORS = {
    "EPERM": (1, "Operation not permitted"),
    "ENOENT": (2, "No such file or directory"),
    "EIO": (5, "Input/output error"),
    "EAGAIN": (11, "Resource temporarily unavailable"),
    "ENOMEM": (12, "Cannot allocate memory"),
    "EACCES": (13, "Permission denied"),
    "EFAULT": (14, "Bad address"),
    "EBUSY": (16, "Device or resource busy"),
    "EEXIST": (17, "File exists"),
    "EXDEV": (18, "Invalid cross-device link"),
    "ENODEV": (19, "No such device"),
    "EINVAL": (22, "Invalid argument"),
    "ENFILE": (23, "Too many open files in system"),
    "EMFILE": (24, "Too many open files"),
    "ETXTBSY": (26, "Text file busy"),
    "EFBIG": (27, "File too large"),
    "ENOSPC": (28, "No space left on device"),
    "EROFS": (30, "Read-only file system"),
    "ENOTEMPTY": (39, "Directory not empty"),
    "ENODATA": (61, "No data available"),
    "EBADMSG": (74, "Bad message"),
    "EOPNOTSUPP": (95, "Operation not supported"),
    "EADDRINUSE": (98, "Address already in use"),
    "EADDRNOTAVAIL": (99, "Cannot assign requested address"),
    "ENETUNREACH": (101, "Network is unreachable"),
    "ETIMEDOUT": (110, "Connection timed out"),
    "ECONNREFUSED": (111, "Connection refused"),
    "EHOSTDOWN": (112, "Host is down"),
    "EHOSTUNREACH": (113, "No route to host"),
    "EUCLEAN": (117, "Structure needs cleaning"),
    "EREMOTEIO": (121, "Remote I/O error"),
    "EDQUOT": (122, "Disk quota exceeded"),
    "ENOKEY": (126, "Required key not available"),
    "EKEYEXPIRED": (127, "Key has expired"),
}
"""By name: the number on Linux (x86-64, Arm), and what strerror(3) of glibc says."""
_BY_NUMBER = {str(number): name for name, (number, _) in ERRORS.items()}
_BY_WORDS = {words.lower(): name for name, (_, words) in ERRORS.items()}
_TOLD = re.compile(
    r"\[Errno (?P<python>\d{1,3})\]|\(os error (?P<rust>\d{1,3})\)|\berrno:? ?(?P<errno>\d{1,3})\b|\((?P<number>\d{1,3})\)"
    rf"|(?P<words>(?i:{'|'.join(sorted(_BY_WORDS, key=len, reverse=True))}))|\b(?P<name>{'|'.join(ERRORS)})\b"
    r"|\b(?:with|returned) (?:error )?(?P<bare>\d{1,3})\b"
)
_NEAR = 160
"""Characters after an operation within which its error stands."""


def error_in(told: str) -> str:
    """Return the name of the first error that a program tells, by its number, words or name; ``""`` where it is none of ``ERRORS``.

    >>> error_in(" failed: Too many open files (24)"), error_in("[Errno 28] Auf dem Gerät ist kein Platz"), error_in(" failed: Success")
    ('EMFILE', 'ENOSPC', '')
    """
    found = _TOLD.search(told[:_NEAR])
    if found is None:
        return ""
    how, value = found.lastgroup, found[found.lastgroup or 0]
    return _BY_WORDS[value.lower()] if how == "words" else value if how == "name" else _BY_NUMBER.get(value, "")


@functools.cache
def errors_of(operation: str) -> dict[str, tables.Row]:
    """Return the rows of ``data/operation_errors.csv`` for an operation, by the name of the error."""
    rows = [row for row in tables.rows("operation_errors") if operation in row["operation"].split("|")]
    return {name: row for row in rows for name in row["errors"].split("|")}
