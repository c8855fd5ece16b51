"""Walking merged directories by descriptors: no path grows, nothing recurses, however deep an instance nested them.

A `Cursor` stands in one directory of a stack of layers and holds one descriptor for each layer that has it. On the way
back it goes through `..`, so that depth costs no descriptors. Only for trees that nobody writes meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandbox.errors import UnsafePath

MAX_PATH = 1 << 16  # characters of a path below the top: sixteen times what a system call takes
OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")
INTERNAL, ESCAPED = "user.overlay.", "user.overlay.overlay."  # the overlay's own; what an instance named like them
DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def is_whiteout(status: os.stat_result) -> bool:
    """A deleted name: a character device 0/0."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


@dataclass
class _Layer:
    """An open directory of one layer, and what it was before we opened it."""

    fd: int
    identity: tuple[int, int]
    closed_mode: int | None = None  # to be given back: it was not readable for us


@dataclass(frozen=True)
class _Level:
    """What `leave` needs: the layers of the parent, and which of them went down with us (and were closed)."""

    above: list[_Layer]
    entered: list[int] = field(default_factory=list)


class Cursor:
    """A place in merged directories, `tops` first to last from the top layer down. Use as a context manager."""

    def __init__(self, tops: Sequence[Path]) -> None:
        self._here: list[_Layer] = []
        self._levels: list[_Level] = []
        try:
            for top in tops:
                self._here.append(_open_directory(os.fspath(top), None, top.lstat()))
                if _opaque(self._here[-1].fd):
                    break
        except BaseException:
            self.close()
            raise

    @property
    def is_directory(self) -> bool:
        """Whether any layer has a directory here."""
        return bool(self._here)

    @property
    def fd(self) -> int:
        """The topmost layer's directory."""
        return self._here[0].fd

    @property
    def opaque(self) -> bool:
        """Whether the topmost layer's directory hides what lies below it."""
        return bool(self._here) and _opaque(self._here[0].fd)

    def entries(self) -> list[tuple[str, os.stat_result]]:
        """Raw names (whiteouts too) of the topmost layer, sorted, with their status."""
        with os.scandir(self.fd) as found:
            return sorted((entry.name, entry.stat(follow_symlinks=False)) for entry in found)

    def merged(self) -> list[str]:
        """Names that exist in the merged directory, sorted."""
        if len(self._here) == 1:
            return [name for name, status in self.entries() if not is_whiteout(status)]
        raw = {name for layer in self._here for name in os.listdir(layer.fd)}  # noqa: PTH208
        return [name for name in sorted(raw) if self.look(name) is not None]

    def look(self, name: str) -> tuple[os.stat_result, int] | None:
        """Status of a name in the merged directory, and the directory that holds it; None = it does not exist."""
        for layer in self._here:
            try:
                found = os.lstat(name, dir_fd=layer.fd)
            except FileNotFoundError:
                continue
            return None if is_whiteout(found) else (found, layer.fd)
        return None

    def enter(self, name: str) -> None:
        """Go down, in every layer whose directory `name` is merged here. There may be none: see `is_directory`."""
        inner: list[_Layer] = []
        entered: list[int] = []
        try:
            for index, layer in enumerate(self._here):
                try:
                    found = os.lstat(name, dir_fd=layer.fd)
                except FileNotFoundError:
                    continue
                if not stat.S_ISDIR(found.st_mode):
                    break
                inner.append(_open_directory(name, layer.fd, found))
                entered.append(index)
                if _opaque(inner[-1].fd):
                    break
        except BaseException:
            for layer in inner:
                _close(layer)
            raise
        for index in entered:
            os.close(self._here[index].fd)
            self._here[index].fd = -1
        self._levels.append(_Level(self._here, entered))
        self._here = inner

    def leave(self) -> None:
        """Go up again."""
        level = self._levels.pop()
        inner, self._here = self._here, level.above
        for index, layer in zip(level.entered, inner, strict=True):
            above = level.above[index]
            above.fd = os.open("..", DIRECTORY, dir_fd=layer.fd)
            _close(layer)
            found = os.fstat(above.fd)
            if (found.st_dev, found.st_ino) != above.identity:
                raise UnsafePath("was moved while it was read", where=f"inode {above.identity[1]}")

    def close(self) -> None:
        """Go up to the top and close everything, so that every directory has its own mode again."""
        while self._levels:
            with contextlib.suppress(OSError, UnsafePath):
                self.leave()
        for layer in self._here:
            _close(layer)
        self._here = []

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_path(path: str) -> None:
    """Raise UnsafePath for a path of unreasonable length: each one costs that much, and there may be many."""
    if len(path) > MAX_PATH:
        depth = path.count("/")
        raise UnsafePath(f"directories nested {depth} deep make paths above {MAX_PATH >> 10} kB", where=f"{path[:60]}…")


@contextlib.contextmanager
def readable(name: str, directory: int, status: os.stat_result) -> Iterator[None]:
    """Make a file of ours readable for a moment: mode 000 hides its content and its attributes."""
    if not _needs(status, 0o400):
        yield
        return
    mode = stat.S_IMODE(status.st_mode)
    os.chmod(name, mode | 0o400, dir_fd=directory)
    try:
        yield
    finally:
        os.chmod(name, mode, dir_fd=directory)


def open_file(name: str, directory: int, status: os.stat_result) -> int:
    """A descriptor of a regular file; `status` says that it is one."""
    if not _needs(status, 0o400):
        return os.open(name, FILE, dir_fd=directory)
    with readable(name, directory, status):
        return os.open(name, FILE, dir_fd=directory)


def attributes(name: str, directory: int, status: os.stat_result) -> dict[str, bytes]:
    """Its `user.*` attributes as an instance sees them. Other kinds of files can't have any."""
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return {}
    path = f"/proc/self/fd/{directory}/{name}"
    found = [key for key in os.listxattr(path, follow_symlinks=False) if key.startswith("user.")]
    if not found:
        return {}
    shown = {_shown(key): key for key in found if not key.startswith(INTERNAL) or key.startswith(ESCAPED)}
    if not shown:
        return {}
    with readable(name, directory, status):
        return {name: os.getxattr(path, key, follow_symlinks=False) for name, key in shown.items()}


def _shown(key: str) -> str:
    """The kernel stores what an instance names like the overlay's own attributes one level deeper."""
    return INTERNAL + key.removeprefix(ESCAPED) if key.startswith(ESCAPED) else key


def stored(key: str) -> str:
    """The name under which a layer has to hold the attribute that an instance sees as `key`."""
    return ESCAPED + key.removeprefix(INTERNAL) if key.startswith(INTERNAL) else key


def _needs(status: os.stat_result, bits: int) -> bool:
    """Whether the mode of a file of ours keeps us out of it. Nothing keeps root out."""
    own = os.geteuid()
    return own != 0 and status.st_uid == own and status.st_mode & bits != bits


def _open_directory(name: str, parent: int | None, status: os.stat_result) -> _Layer:
    mode = stat.S_IMODE(status.st_mode)
    closed = _needs(status, 0o500)
    if closed:
        os.chmod(name, mode | 0o500, dir_fd=parent)
    try:
        fd = os.open(name, DIRECTORY, dir_fd=parent)
    except BaseException:
        if closed:
            os.chmod(name, mode, dir_fd=parent)
        raise
    return _Layer(fd, (status.st_dev, status.st_ino), mode if closed else None)


def _close(layer: _Layer) -> None:
    try:
        if layer.fd >= 0 and layer.closed_mode is not None:
            os.fchmod(layer.fd, layer.closed_mode)
    finally:
        if layer.fd >= 0:
            os.close(layer.fd)
            layer.fd = -1


def _opaque(fd: int) -> bool:
    """Whether a directory hides everything below it."""
    for name in OPAQUE:
        with contextlib.suppress(OSError):
            if os.getxattr(fd, name) == b"y":
                return True
    return False
