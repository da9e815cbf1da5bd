"""The release and build of torch that --torch and --cpu ask for."""

from __future__ import annotations

import re

import click

_TORCH = r"(?:torch==|v)?(\d+\.\d+(?:\.\d+)?)(?:\+(cpu|cu\d{2,3}))?"


def torch_wish(text: str | None, cpu: bool) -> tuple[str, bool]:
    """``2.14``, ``2.14.0`` or ``2.14.0+cu126`` (``""`` for none), and whether it is the CPU's. Raises click.BadParameter.

    >>> torch_wish("torch==2.14.0+cpu", False), torch_wish(None, True)
    (('2.14.0+cpu', True), ('', True))
    """
    if not text:
        return "", cpu
    found = re.fullmatch(_TORCH, text)
    if found is None:
        raise click.BadParameter(f"{text} is no version such as 2.14 or 2.14.0+cu126.", param_hint="--torch")
    build = found[2] or ""
    if cpu and build.startswith("cu"):
        raise click.BadParameter("--cpu and a CUDA build exclude each other.", param_hint="--torch")
    return found[1] + (f"+{build}" if build else ""), cpu or build == "cpu"
