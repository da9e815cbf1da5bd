"""The self-contained file, made once for all tests that start it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from bundled import good, shared


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Made for the interpreters of this machine, in a folder that every user may read."""
    folder = Path(tempfile.mkdtemp(prefix="bundle-"))
    folder.chmod(0o755)
    made = shared(tmp_path_factory, *(f"--python={major}.{minor}" for major, minor in good()))
    yield Path(shutil.copy(made, folder / "tt.pyz"))
    shutil.rmtree(folder)
