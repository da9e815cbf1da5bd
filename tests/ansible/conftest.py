"""What all plays need, made once: the tool as one file, the collection installed, machines to play on."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundled import shared
from controller import installed


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The self-contained file, for the Pythons of the machines."""
    return shared(tmp_path_factory, "--python=3.11", "--python=3.13")


@pytest.fixture(scope="session")
def work() -> Iterator[Path]:
    """A folder with a short path, as sockets need it, on a disk, as an overlay needs it, with the collection in it."""
    folder = Path(tempfile.mkdtemp(prefix="tta-", dir="/var/tmp"))
    installed(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)
