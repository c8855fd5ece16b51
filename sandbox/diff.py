"""What an instance changed: its upper layer compared with the layers below."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandbox import layers
from sandbox.errors import UnsafePath
from sandbox.layers import Entry, look_up, readable

Kind = Literal["added", "modified", "deleted", "type", "mode"]
CHUNK = 1 << 20


@dataclass(frozen=True)
class Change:
    """One changed path, relative; bytes that are not UTF-8 are surrogate-escaped (`os.fsencode` undoes it)."""

    path: str
    kind: Kind
    is_directory: bool
    size: int  # of the new content in bytes; 0 for deletions and everything that is not a regular file


def diff(lowers: Sequence[Path], upper: Path) -> Iterator[Change]:
    """Changes of `upper` (and nothing else) against `lowers` (bottom first): parents first, names sorted.

    A copy-up without a change of content, type or mode is no change. Of a deleted directory only its own name is
    given. Touch an upper only after its sandbox has ended. Raises UnsafePath where files can't be compared: names
    nested too deeply, or a disk error.
    """
    stack = [] if layers.is_opaque(upper) else list(reversed(lowers))
    try:
        yield from _directory(upper, stack, "")
    except OSError as error:
        where = str(error.filename)[:200]
        raise UnsafePath(f"can't be compared ({error.strerror})", where=where) from None


def _directory(upper: Path, stack: Sequence[Path], prefix: str) -> Iterator[Change]:
    layers.check_depth(prefix)
    for name in layers.names(upper):
        path = upper / name
        yield from _entry(path, path.lstat(), look_up(stack, name), prefix + name)


def _entry(path: Path, status: os.stat_result, below: Entry | None, name: str) -> Iterator[Change]:
    mode = status.st_mode
    if layers.is_whiteout(status):
        if below is not None:
            yield Change(name, "deleted", below.is_directory, 0)
        return
    kind = _kind(path, status, below)
    if kind is not None:
        yield Change(name, kind, stat.S_ISDIR(mode), status.st_size if stat.S_ISREG(mode) else 0)
    if stat.S_ISDIR(mode):
        with readable(path, status), layers.opened(below.directories if below is not None else ()):
            yield from _inside(path, below, f"{name}/")


def _inside(path: Path, below: Entry | None, prefix: str) -> Iterator[Change]:
    """Changes in a directory; if it is opaque, everything below that has not been made again is gone."""
    stack = below.directories if below is not None and below.is_directory else ()
    if stack and layers.is_opaque(path):
        for name, entry in layers.merged(stack):
            if not os.path.lexists(path / name):
                yield Change(prefix + name, "deleted", entry.is_directory, 0)
    yield from _directory(path, stack, prefix)


def _kind(path: Path, status: os.stat_result, below: Entry | None) -> Kind | None:
    if below is None:
        return "added"
    old, new = below.status.st_mode, status.st_mode
    if stat.S_IFMT(old) != stat.S_IFMT(new):
        return "type"
    if stat.S_ISREG(new) and not _same_content(path, status, below):
        return "modified"
    if stat.S_ISLNK(new):
        return None if path.readlink() == below.path.readlink() else "modified"
    return None if stat.S_IMODE(old) == stat.S_IMODE(new) else "mode"


def _same_content(path: Path, status: os.stat_result, below: Entry) -> bool:
    if status.st_size != below.status.st_size:
        return False
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with readable(path, status):
        one = os.open(path, flags)
    with readable(below.path, below.status):
        two = os.open(below.path, flags)
    with open(one, "rb", buffering=0) as new, open(two, "rb", buffering=0) as old:
        while True:
            left, right = new.read(CHUNK), old.read(CHUNK)
            if left != right:
                return False
            if not left:
                return True
