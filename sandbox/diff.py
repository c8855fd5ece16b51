"""What an instance changed: its upper layer compared with the layers below."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sandbox import stack
from sandbox.errors import UnsafePath
from sandbox.stack import Cursor

Kind = Literal["added", "modified", "deleted", "type", "mode", "xattr"]
CHUNK = 1 << 20
MAX_TEXT = 1 << 29  # characters of all paths together: deep trees make long names for few inodes


@dataclass(frozen=True)
class Change:
    """One changed path, relative; bytes that are not UTF-8 are surrogate-escaped (`os.fsencode` undoes it)."""

    path: str
    kind: Kind
    is_directory: bool
    size: int  # of the new content in bytes; 0 for deletions and everything that is not a regular file
    also: tuple[Kind, ...] = ()  # what else changed about it: a modified file may have a new mode too


def diff(lowers: Sequence[Path], upper: Path) -> Iterator[Change]:
    """Changes of `upper` (and nothing else) against `lowers` (bottom first): parents first, names sorted.

    Compared are type, content, mode and `user.*` attributes; not owners, times and the top directory itself. A copy-up
    without such a change is no change. Of a deleted directory only its own name is given, and a type that changed
    says nothing of what lay below. Touch an upper only after its sandbox has ended. Raises UnsafePath where files
    can't be compared: paths of 64 kB, or a disk error.
    """
    try:
        with Cursor([upper]) as new, Cursor(list(reversed(lowers))) as old:
            total = 0
            for change in _walk(new, old):
                total += len(change.path)
                if total > MAX_TEXT:
                    raise UnsafePath("the changed paths are too long to be listed", where=str(upper))
                yield change
    except OSError as error:
        where = str(error.filename)[:200]
        raise UnsafePath(f"can't be compared ({error.strerror})", where=where) from None


def _walk(new: Cursor, old: Cursor) -> Iterator[Change]:
    prefixes, hidden = [""], [new.opaque]
    queues = [_listing(new, old, hidden[-1])]
    while queues:
        for name, status in queues[-1]:
            path = prefixes[-1] + name
            change = _change(path, name, status, new, old)
            if change is not None:
                yield change
            if status is not None and stat.S_ISDIR(status.st_mode):
                stack.check_path(path)
                new.enter(name)
                old.enter(name)
                prefixes.append(f"{path}/")
                hidden.append(hidden[-1] or new.opaque)  # below an opaque directory nothing else carries the mark
                queues.append(_listing(new, old, hidden[-1]))
                break
        else:
            queues.pop()
            hidden.pop()
            prefixes.pop()
            if queues:
                new.leave()
                old.leave()


def _listing(new: Cursor, old: Cursor, hidden: bool) -> Iterator[tuple[str, os.stat_result | None]]:
    """Names in the upper with their status; and, with None, what it hides as a whole and does not have again."""
    found: list[tuple[str, os.stat_result | None]] = list(new.entries())
    if old.is_directory and hidden:
        here = {name for name, _ in found}
        found = sorted([*found, *((name, None) for name in old.merged() if name not in here)], key=lambda item: item[0])
    return iter(found)


def _change(path: str, name: str, status: os.stat_result | None, new: Cursor, old: Cursor) -> Change | None:
    below = old.look(name)
    if status is None or stack.is_whiteout(status):
        return None if below is None else Change(path, "deleted", stat.S_ISDIR(below[0].st_mode), 0)
    kinds: list[Kind] = ["added"] if below is None else _kinds(name, status, new.fd, *below)
    if not kinds:
        return None
    size = status.st_size if stat.S_ISREG(status.st_mode) else 0
    return Change(path, kinds[0], stat.S_ISDIR(status.st_mode), size, tuple(kinds[1:]))


def _kinds(name: str, status: os.stat_result, directory: int, before: os.stat_result, old: int) -> list[Kind]:
    """Every way in which a name that both have differs, the weightiest first."""
    mode = status.st_mode
    if stat.S_IFMT(before.st_mode) != stat.S_IFMT(mode):
        return ["type"]
    if stat.S_ISLNK(mode):
        same = os.readlink(name, dir_fd=directory) == os.readlink(name, dir_fd=old)
        return [] if same else ["modified"]
    kinds: list[Kind] = []
    if stat.S_ISREG(mode) and not _same_content(name, (directory, status), (old, before)):
        kinds.append("modified")
    if stat.S_IMODE(before.st_mode) != stat.S_IMODE(mode):
        kinds.append("mode")
    if stack.attributes(name, directory, status) != stack.attributes(name, old, before):
        kinds.append("xattr")
    return kinds


def _same_content(name: str, new: tuple[int, os.stat_result], old: tuple[int, os.stat_result]) -> bool:
    size = new[1].st_size
    if size != old[1].st_size:
        return False
    if size == 0:
        return True
    one = stack.open_file(name, *new)
    try:
        two = stack.open_file(name, *old)
        try:
            return _same_data(one, two, size)
        finally:
            os.close(two)
    finally:
        os.close(one)


def _same_data(one: int, two: int, size: int) -> bool:
    position = 0
    while position < size:
        if size > CHUNK:  # holes of both are equal
            position = min(_next_data(one, position, size), _next_data(two, position, size))
        data = os.pread(one, min(CHUNK, size), position)
        if data != os.pread(two, min(CHUNK, size), position):
            return False
        if not data:
            break
        position += len(data)
    return True


def _next_data(descriptor: int, position: int, size: int) -> int:
    try:
        return os.lseek(descriptor, position, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size  # the rest is a hole
        raise
