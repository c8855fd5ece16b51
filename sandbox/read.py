"""Safe reading of what an instance left: no symlink is followed, no FIFO or device is opened, sizes are capped."""

from __future__ import annotations

import os
from pathlib import Path


def read_file(root: Path, relative: str, max_bytes: int) -> bytes:
    """Up to `max_bytes` of the regular file `relative` below `root`.

    Raises FileNotFoundError, or UnsafePath for symlinks anywhere below root, `..`, and everything but regular files."""
    raise NotImplementedError


def open_beneath(root: Path, relative: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of `relative` below `root`, opened with openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)."""
    raise NotImplementedError
