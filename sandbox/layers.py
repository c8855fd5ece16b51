"""Stacks of layers: what lies where in a stack, freezing an upper, copying the merged tree out."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandbox import read
from sandbox.errors import SandboxFailed, UnsafePath
from sandbox.host import Host

MAX_DEPTH = 100
OPAQUE = ("user.overlay.opaque", "trusted.overlay.opaque")


@dataclass(frozen=True)
class Entry:
    """A name in a stack of directories: the topmost layer's, and for directories those that are merged below it."""

    path: Path
    status: os.stat_result
    directories: tuple[Path, ...] = ()  # top first; empty unless it is a directory

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory in the merged view."""
        return stat.S_ISDIR(self.status.st_mode)


def is_whiteout(status: os.stat_result) -> bool:
    """A deleted name: a character device 0/0."""
    return stat.S_ISCHR(status.st_mode) and status.st_rdev == 0


def is_opaque(directory: Path) -> bool:
    """Whether the directory hides everything below it. Call it on a readable directory (`readable`)."""
    for name in OPAQUE:
        with contextlib.suppress(OSError):
            if os.getxattr(directory, name, follow_symlinks=False) == b"y":
                return True
    return False


@contextlib.contextmanager
def readable(path: Path, status: os.stat_result) -> Iterator[None]:
    """Make a directory or file of ours readable for a moment: mode 000 hides names, content and the opaque mark."""
    needed = 0o500 if stat.S_ISDIR(status.st_mode) else 0o400
    closed = os.geteuid() != 0 and status.st_mode & needed != needed and status.st_uid == os.geteuid()
    if not closed or stat.S_ISLNK(status.st_mode):
        yield
        return
    path.chmod(stat.S_IMODE(status.st_mode) | needed)
    try:
        yield
    finally:
        path.chmod(stat.S_IMODE(status.st_mode))


@contextlib.contextmanager
def opened(stack: Sequence[Path]) -> Iterator[None]:
    """Directories whose entries can be looked up, for a moment (see `readable`)."""
    with contextlib.ExitStack() as held:
        for directory in stack:
            held.enter_context(readable(directory, directory.lstat()))
        yield


def check_depth(prefix: str) -> None:
    """Raise UnsafePath where directories are nested beyond reason: an instance must not exhaust our stack."""
    if prefix.count("/") > MAX_DEPTH:
        raise UnsafePath(f"directories nested more than {MAX_DEPTH} deep", where=f"{prefix[:60]}…")


def names(directory: Path) -> list[str]:
    """Sorted names in a directory."""
    with readable(directory, directory.lstat()):
        return sorted(os.listdir(directory))  # noqa: PTH208


def look_up(stack: Sequence[Path], name: str) -> Entry | None:
    """The entry `name` in merged directories (top first); None if it does not exist or was deleted."""
    top: Path | None = None
    status: os.stat_result | None = None
    directories: list[Path] = []
    for directory in stack:
        path = directory / name
        try:
            found = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if is_whiteout(found) or (status is not None and not stat.S_ISDIR(found.st_mode)):
            break
        if status is None:
            top, status = path, found
            if not stat.S_ISDIR(found.st_mode):
                break
        directories.append(path)
        with readable(path, found):
            if is_opaque(path):
                break
    return None if top is None or status is None else Entry(top, status, tuple(directories))


def merged(stack: Sequence[Path]) -> Iterator[tuple[str, Entry]]:
    """Names and entries of merged directories (top first), sorted."""
    seen: set[str] = set()
    for directory in stack:
        seen.update(names(directory))
    for name in sorted(seen):
        entry = look_up(stack, name)
        if entry is not None:
            yield name, entry


def stack_of(lowers: Sequence[Path], upper: Path | None) -> list[Path]:
    """The stack, top first, of an overlay's `lowers` (bottom first) and `upper`."""
    return [*([upper] if upper is not None else []), *reversed(lowers)]


def freeze(host: Host, upper: Path, layer: Path) -> None:
    """Turn the upper of an ended sandbox into a read-only layer at `layer` (rename, then fsync of both parents).

    `upper` is what `make_upper` returned; its `work` directory is removed. `layer` must not exist, and its parent
    must lie on the same file system. Contents are flushed first, so after a power cut the layer is whole or not there.
    """
    if layer.exists():
        raise SandboxFailed("the layer exists already", where=str(layer))
    try:
        _flush(upper)
        upper.rename(layer)
        for directory in (layer.parent, upper.parent):
            _fsync_directory(directory)
    except OSError as error:
        raise SandboxFailed(f"the layer can't be frozen ({error.strerror})", where=str(layer)) from None
    host.remove(upper.parent)


def _flush(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(descriptor)


def _fsync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_layered(lowers: Sequence[Path], upper: Path | None, relative: str, max_bytes: int) -> bytes:
    """Content of a regular file of the merged tree (`lowers` bottom first). FileNotFoundError / UnsafePath."""
    stack = tuple(stack_of(lowers, upper))
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if not parts or ".." in parts:
        raise UnsafePath("leads out of the instance's files", where=relative)
    with contextlib.ExitStack() as held:
        for part in parts[:-1]:
            held.enter_context(opened(stack))
            stack = _entry(stack, part, relative).directories
            if not stack:
                raise UnsafePath("not a directory, and symlinks are not followed", where=relative)
        held.enter_context(opened(stack))
        entry = _entry(stack, parts[-1], relative)
        held.enter_context(readable(entry.path, entry.status))
        return read.read_file(entry.path.parent, entry.path.name, max_bytes)


def _entry(stack: Sequence[Path], name: str, relative: str) -> Entry:
    entry = look_up(stack, name)
    if entry is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), relative)
    return entry


def materialise(lowers: Sequence[Path], upper: Path | None, dest: Path, max_bytes: int | None = None) -> None:
    """Copy the merged tree to the new directory `dest`: regular files, directories, symlinks (as they are); sockets,
    FIFOs and devices are left out, setuid bits too. Holes stay holes. Raises SandboxFailed when it would be larger
    than `max_bytes` of blocks, or does not fit.
    """
    try:
        dest.mkdir()
        budget = _Budget(max_bytes)
        _copy_directory(stack_of(lowers, upper), dest, budget, "")
    except OSError as error:
        raise SandboxFailed(f"the copy failed ({error.strerror})", where=str(dest)) from None


class _Budget:
    def __init__(self, left: int | None) -> None:
        self.left = left

    def spend(self, size: int, where: Path) -> None:
        if self.left is not None:
            self.left -= size
            if self.left < 0:
                raise SandboxFailed("the tree is larger than allowed", where=str(where))


def _copy_directory(stack: Sequence[Path], dest: Path, budget: _Budget, prefix: str) -> None:
    check_depth(prefix)
    for name, entry in merged(stack):
        target, mode = dest / name, entry.status.st_mode
        if stat.S_ISDIR(mode):
            target.mkdir(mode=0o700)
            with opened(entry.directories):
                _copy_directory(entry.directories, target, budget, f"{prefix}{name}/")
            target.chmod(mode & 0o777)
        elif stat.S_ISLNK(mode):
            target.symlink_to(entry.path.readlink())
        elif stat.S_ISREG(mode):
            budget.spend(entry.status.st_blocks * 512, entry.path)
            _copy_file(entry, target)
            os.utime(target, ns=(entry.status.st_atime_ns, entry.status.st_mtime_ns))


def _copy_file(entry: Entry, target: Path) -> None:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with readable(entry.path, entry.status):
        source = os.open(entry.path, flags)
    try:
        dest = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(source).st_size
            os.ftruncate(dest, size)
            for start, end in _data(source, size):
                _copy_range(source, dest, start, end)
            os.fchmod(dest, entry.status.st_mode & 0o777)
        finally:
            os.close(dest)
    finally:
        os.close(source)


def _data(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Stretches that are not holes."""
    position = 0
    while position < size:
        try:
            start = os.lseek(source, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:
                return  # the rest is a hole
            raise
        position = os.lseek(source, start, os.SEEK_HOLE)
        yield start, position


def _copy_range(source: int, dest: int, start: int, end: int) -> None:
    os.lseek(dest, start, os.SEEK_SET)
    while start < end:
        count = os.sendfile(dest, source, start, end - start)
        if count == 0:
            return
        start += count
