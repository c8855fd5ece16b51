"""What the main instance said, kept for looking: `.sia/main/stdout.log` and, before it, `stdout.log.1`."""

from __future__ import annotations

import os
from pathlib import Path

CAP = 4 * 1024 * 1024  # bytes of one file


class StdoutLog:
    """Appends; at CAP the file becomes the older one. A disk that is full costs lines here, nothing else."""

    def __init__(self, path: Path, cap: int = CAP) -> None:
        """Nothing is opened before the first write."""
        self._path, self._cap = path, cap
        self._file: int | None = None
        self._size = 0

    def write(self, data: bytes) -> None:
        """From one thread at a time."""
        try:
            self._open()
            if self._size and self._size + len(data) > self._cap:
                self.close()
                self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                self._open()
            assert self._file is not None
            self._size += os.write(self._file, data[: self._cap])
        except OSError:
            self.close()

    def close(self) -> None:
        """The next write opens it again."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> None:
        if self._file is None:
            self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._size = os.fstat(self._file).st_size
