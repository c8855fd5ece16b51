"""Stacks of layers: freezing an upper, finding a path in a stack, copying the merged tree out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sandbox.host import Host


def freeze(host: Host, upper: Path, layer: Path) -> None:
    """Turn the upper of an ended sandbox into a read-only layer at `layer` (rename, then fsync of both parents).

    `upper` is what `make_upper` returned; its `work` directory is removed. `layer` must not exist, and its parent
    must lie on the same file system."""
    raise NotImplementedError


def read_layered(lowers: Sequence[Path], upper: Path | None, relative: str, max_bytes: int) -> bytes:
    """Content of a regular file of the merged tree (`lowers` bottom first). FileNotFoundError / UnsafePath."""
    raise NotImplementedError


def materialise(lowers: Sequence[Path], upper: Path | None, dest: Path, max_bytes: int | None = None) -> None:
    """Copy the merged tree to the new directory `dest`: regular files, directories, symlinks (as they are); sockets,
    FIFOs and devices are left out. Raises SandboxFailed when it would be larger than `max_bytes` of blocks."""
    raise NotImplementedError
