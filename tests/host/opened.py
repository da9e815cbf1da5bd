"""Trees and archives that tests of opening are given, and what opening them says."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from torchtune_sys.errors import UnreadableInput
from torchtune_sys.host.base import Host
from torchtune_sys.host.input.opening import open_input
from torchtune_sys.model.values import Missing, Why

FILES = {"proc/cpuinfo": "processor : 0\n", "proc/self/status": "Name: x\n", "sys/class/net/eth0/mtu": "1500\n"}


def why(found: object) -> Why:
    assert isinstance(found, Missing), found
    return found.why


def host(path: Path | str) -> Host:
    found = open_input(str(path))
    assert isinstance(found, Host)
    return found


def refusal(path: Path | str, **more: object) -> str:
    with pytest.raises(UnreadableInput) as caught:
        open_input(str(path), **more)  # type: ignore[arg-type]
    assert caught.value.todo, "an error says what to do"
    return str(caught.value)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **fields: int) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def tar(*entries: tuple[tarfile.TarInfo, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as file:
        for info, content in entries:
            info.size = len(content)
            file.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def tree_tar(prefix: str = "", **more: int) -> bytes:
    return tar(*((member(prefix + name), text.encode()) for name, text in FILES.items()), **more)


def put(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


# --- copied trees and archives


def packed(name: str, data: bytes) -> bytes:
    pack: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
    return pack.get(Path(name).suffix, bytes)(data)
