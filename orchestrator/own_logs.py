"""The agent's own iteration log, as it left it in one trial's upper: read only to compare it with the journal."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from sandbox.errors import UnsafePath
from sandbox.read import read_file

FILES_CAP = 5000  # files that are looked at
FILE_CAP = 32 * 1024 * 1024  # bytes of one file: the largest request is 16 MB, and escaping makes it longer
TOTAL_CAP = 512 * 1024 * 1024  # bytes of all


def own_logs(data_upper: Path) -> Iterator[tuple[str, bytes]]:
    """(name below `iterations/`, content) of each regular file in the upper of /root/data, one in memory at a time.

    Links, FIFOs and devices are passed over. Call it only after the instance has ended.
    """
    root = data_upper / "iterations"
    seen = total = 0
    if root.is_symlink() or not root.is_dir():
        return
    for directory, names in _walk(root):
        for name in names:
            seen += 1
            if seen > FILES_CAP or total > TOTAL_CAP:
                return
            relative = os.path.relpath(Path(directory, name), root)
            try:
                content = read_file(root, relative, FILE_CAP)
            except (UnsafePath, OSError):
                continue
            total += len(content)
            yield relative, content


def _walk(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Directories and their files in order; os.walk does not follow links and passes over what it can't read."""
    for directory, directories, names in os.walk(root, followlinks=False):
        directories.sort()
        yield directory, sorted(names)
