"""A regular file, of which what was never written (a hole: all zeros) costs no time, however long it is.

Source: lseek(2), SEEK_DATA and SEEK_HOLE.
"""

from __future__ import annotations

import errno
import os

_BLOCK = 512
"""Bytes that st_blocks counts in; stat(2)."""


class PlainFile:
    """An open file, read from where it stands."""

    def __init__(self, handle: int, info: os.stat_result) -> None:
        self._handle = handle
        self._size = info.st_size
        self._is_sparse = info.st_blocks * _BLOCK < info.st_size

    def read(self, size: int) -> bytes:
        """Return the next bytes, fewer than ``size`` where a hole begins or ends, none at the end. Raises OSError."""
        hole, written = self._ahead(size)
        if hole:
            return bytes(self.pass_over(min(size, hole)))
        return os.read(self._handle, min(size, written))

    def pass_over(self, size: int) -> int:
        """Go on without reading; how many bytes, which are fewer than ``size`` where the file ends."""
        passed = max(min(size, self._size - self._at()), 0)
        os.lseek(self._handle, passed, os.SEEK_CUR)
        return passed

    def pass_hole(self) -> int:
        """Go on to what was written; how many bytes are passed."""
        return self.pass_over(self._ahead(0)[0])

    def _at(self) -> int:
        return os.lseek(self._handle, 0, os.SEEK_CUR)

    def _ahead(self, size: int) -> tuple[int, int]:
        """Return how many bytes of a hole come next, and where none do, how many that were written: ``size`` where that is not known."""
        if not self._is_sparse:
            return 0, size
        at = self._at()
        if at >= self._size:
            return 0, size
        try:
            written = os.lseek(self._handle, at, os.SEEK_DATA)
            end = os.lseek(self._handle, at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing was written from here on
                return self._size - at, 0
            self._is_sparse = False  # its file system tells of no holes
            return 0, size
        finally:
            os.lseek(self._handle, at, os.SEEK_SET)
        return written - at, end - at
