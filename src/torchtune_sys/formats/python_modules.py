"""Names of modules that ``import torch`` looks for along sys.path: a file with one of these names in front of them is imported instead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

IMPORTED = frozenset(
    (
        "argparse", "ast", "asyncio", "base64", "bisect", "bz2", "calendar", "collections", "concurrent", "contextlib",
        "contextvars", "copy", "copyreg", "csv", "ctypes", "dataclasses", "datetime", "difflib", "dis", "email", "enum",
        "fnmatch", "functools", "gettext", "glob", "gzip", "hashlib", "heapq", "http", "inspect", "ipaddress", "json",
        "keyword", "linecache", "locale", "logging", "lzma", "multiprocessing", "numbers", "numpy", "opcode", "operator",
        "pathlib", "pickle", "pickletools", "pkgutil", "platform", "pprint", "queue", "quopri", "random", "re", "reprlib",
        "selectors", "shutil", "signal", "socket", "ssl", "string", "struct", "subprocess", "tarfile", "tempfile", "textwrap",
        "threading", "timeit", "token", "tokenize", "torch", "traceback", "types", "typing", "unittest", "urllib", "uuid",
        "warnings", "weakref", "zipfile",
    )
)  # fmt: skip
"""What ``import torch`` (2.13) imports beside its own modules, and Python has neither at its start nor built in (as mostly ``math``)."""
REQUIRED = frozenset(("filelock", "fsspec", "jinja2", "networkx", "sympy", "typing_extensions"))
"""Packages that torch requires: a file ``sympy.py`` is none of them, a folder may be one."""
PARTS_OF_TORCH = (
    "autograd", "backends", "cuda", "distributed", "distributions", "futures", "jit", "linalg", "multiprocessing", "nn", "optim", "sparse", "utils",
)  # fmt: skip
"""Packages that ``import torch`` imports itself, whatever it was built with (1.9 to 2.13)."""


def hiding(names: Iterable[str], exists: Callable[[str], Any], others: frozenset[str] = frozenset()) -> Iterator[str]:
    """Yield what is imported in the place of a module: a file of a directory, or the ``__init__.py`` of a folder there; those of torch and NumPy have a
    ``version.py``, too. ``exists``: whether a path below the directory is there (True, False, or nobody knows). ``others``: modules that files alone hide.

    >>> sorted(hiding(["random.py", "torch", "numpy", "x.py"], {"torch/__init__.py", "numpy/__init__.py", "numpy/version.py"}.__contains__))
    ['random.py', 'torch/__init__.py']
    """
    for name in names:
        if name.endswith(".py"):
            if name[:-3] in IMPORTED or name[:-3] in others:
                yield name
        elif name in IMPORTED and exists(f"{name}/__init__.py") is True and exists(f"{name}/version.py") is False:
            yield f"{name}/__init__.py"
