"""Say what an interpreter is and where it looks for packages. Runs inside it: Python 2.7 and 3.x, no import but what start-up loaded.

Prints one JSON object. json, re, sysconfig and platform are left alone: they would double the start of a bare interpreter.
"""

# mypy: ignore-errors
# ruff: noqa: UP031
# Python 2.7 runs it too, so it has no annotations that the checker could use.

import os
import sys


def look(path=None):
    """Return what the interpreter says of itself. ``path``: what the interpreter started with, where sys.path is no longer that."""
    site = sys.modules.get("site")
    user = getattr(site, "USER_SITE", None) if getattr(site, "ENABLE_USER_SITE", None) else None
    path = [entry for entry in (path or sys.path) if entry]
    try:
        libc = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):
        libc = None
    return {
        "executable": sys.executable,
        "version": ".".join(str(part) for part in sys.version_info[:3]),
        "implementation": getattr(getattr(sys, "implementation", None), "name", "pypy" if "PyPy" in sys.version else "cpython"),
        "machine": os.uname()[4] + ("" if sys.maxsize > 1 << 32 else " (32-bit)"),
        "abiflags": getattr(sys, "abiflags", ""),
        "free_threaded": "t" in getattr(sys, "abiflags", "") and sys.version_info[:2] >= (3, 13),
        "prefix": sys.prefix,
        "base_prefix": getattr(sys, "base_prefix", getattr(sys, "real_prefix", sys.prefix)),
        "path": path,
        "user_site": user if user in path else None,
        "glibc": libc.split()[-1] if libc else None,
        "not_found": [name for name in ASKED_FOR if not found(name, path)],
    }


ASKED_FOR = ("_ctypes", "typing_extensions", "sympy", "mpmath")
"""Modules of Python itself, or of packages of their own, without which import torch fails, or (SymPy's) the optimizers of torch from 2.2 on."""


def found(name, path):
    """Return whether a module would be found, by who finds those of directories and archives; True where that cannot be asked."""
    finder = getattr(sys.modules.get("_frozen_importlib_external"), "PathFinder", None)
    try:
        inside = finder is None or name in sys.builtin_module_names
        return inside or finder.find_spec(name, path) is not None or others_find(name)
    except Exception:
        return True


def others_find(name):
    """Return whether something else may find it: an editable installation's own finder."""
    usual = ("BuiltinImporter", "FrozenImporter", "PathFinder", "_SixMetaPathImporter", "DistutilsMetaFinder")
    return any(
        getattr(other, "__name__", type(other).__name__) not in usual and other.find_spec(name, None) for other in sys.meta_path
    )


def encoded(value):
    if value is None or value is True or value is False:
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, dict):
        return "{" + ",".join(encoded(key) + ":" + encoded(item) for key, item in sorted(value.items())) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ",".join(encoded(item) for item in value) + "]"
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    return '"' + "".join(_character(ord(character)) for character in text) + '"'


def _character(code):
    if 31 < code < 127 and code not in (34, 92):
        return chr(code)
    if code > 0xFFFF:
        return "\\u%04x\\u%04x" % (0xD800 + ((code - 0x10000) >> 10), 0xDC00 + ((code - 0x10000) & 0x3FF))
    return "\\ufffd" if 0xD800 <= code < 0xE000 else "\\u%04x" % code


def say(text):
    """Write a line past sys.stdout, whose encoding PYTHONIOENCODING may have made anything, and which others may have replaced."""
    sys.stdout.flush()
    with os.fdopen(os.dup(1), "wb") as out:
        out.write(text.encode("ascii") + b"\n")


if __name__ == "__main__":
    say(encoded(look()))
