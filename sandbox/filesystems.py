"""Which file systems can hold an upper layer."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from sandbox.errors import CannotIsolate

UNFIT = {
    "overlay": "is an overlay itself (the root of a container, usually)",
    "nfs": "is NFS, which has no extended attributes for it",
    "nfs4": "is NFS, which has no extended attributes for it",
    "vfat": "has no extended attributes",
    "exfat": "has no extended attributes",
    "9p": "is a 9p share, which can't hold one",
    "fuse.sshfs": "is sshfs, which can't hold one",
}
LAYERS = ("ext4", "xfs", "btrfs", "tmpfs")  # that certainly can be read-only layers
FIX = "set SIA_HOME to a directory on a local disk (ext4, xfs, btrfs) or, if there is none, on a tmpfs such as /dev/shm"


def kind(path: Path, mounts: Path = Path("/proc/self/mountinfo")) -> str:
    """Type of the file system that `path` lies on, as in /proc/mounts; "" if unknown."""
    device = os.stat(path).st_dev  # noqa: PTH116
    wanted = f"{os.major(device)}:{os.minor(device)}"
    real = str(path.resolve())
    best, found = -1, ""
    for line in mounts.read_text(errors="replace").splitlines():
        fields, _, rest = line.partition(" - ")
        words = fields.split()
        point = words[4].encode().decode("unicode_escape")
        inside = real == point or real.startswith(point.rstrip("/") + "/")
        if words[2] == wanted and inside and len(point) >= best:  # a later mount hides an earlier one
            best, found = len(point), rest.split()[0]
    return found


def check_upper(directory: Path) -> None:
    """Raise CannotIsolate if no upper layer can lie in `directory`."""
    _check(os.stat(directory).st_dev, str(directory))  # noqa: PTH116


@functools.lru_cache(maxsize=64)
def _check(device: int, directory: str) -> None:
    found = kind(Path(directory))
    if found in UNFIT:
        raise CannotIsolate(f"no overlay can be written here: this {UNFIT[found]}", where=directory, fix=FIX)


def can_be_layer(directory: Path) -> bool:
    """Whether a directory can certainly be a read-only layer; others may be able to as well."""
    return _is_layer(os.stat(directory).st_dev, str(directory))  # noqa: PTH116


@functools.lru_cache(maxsize=64)
def _is_layer(device: int, directory: str) -> bool:
    return kind(Path(directory)) in LAYERS
