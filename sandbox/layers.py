"""Layers: freezing an upper, reading and copying the merged tree, flattening a stack into one layer."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from sandbox import read, stack
from sandbox.errors import SandboxFailed, UnsafePath
from sandbox.host import Host
from sandbox.stack import Cursor

PERMISSIONS = 0o1777  # setuid and setgid bits are never copied


def stack_of(lowers: Sequence[Path], upper: Path | None) -> list[Path]:
    """The stack, top first, of an overlay's `lowers` (bottom first) and `upper`."""
    return [*([upper] if upper is not None else []), *reversed(lowers)]


def freeze(host: Host, upper: Path, layer: Path) -> None:
    """Turn the upper of an ended sandbox into a read-only layer at `layer` (rename, then fsync of both parents).

    `upper` is what `make_upper` returned; its `work` directory is removed. `layer` must not exist, and its parent
    must lie on the same file system; from a ramdisk it is copied. Contents are flushed first, so after a power
    cut the layer is whole or not there.
    """
    if layer.exists():
        raise SandboxFailed("the layer exists already", where=str(layer))
    if host.ramdisks.find(upper):
        _publish(host, layer, lambda dest: _copy_layer(upper, dest), "the layer can't be frozen")
        host.remove(upper.parent)
        return
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
    parts = [part for part in relative.split("/") if part not in ("", ".")]
    if not parts or ".." in parts or "\0" in relative:
        raise UnsafePath("leads out of the instance's files", where=repr(relative))
    with Cursor(stack_of(lowers, upper)) as cursor:
        for part in parts[:-1]:
            status, _ = _found(cursor, part, relative)
            if not stat.S_ISDIR(status.st_mode):
                raise UnsafePath("not a directory, and symlinks are not followed", where=relative)
            cursor.enter(part)
        status, directory = _found(cursor, parts[-1], relative)
        with stack.readable(parts[-1], directory, status):
            return read.read_at(directory, parts[-1], max_bytes, relative)


def _found(cursor: Cursor, name: str, relative: str) -> tuple[os.stat_result, int]:
    found = cursor.look(name)
    if found is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), relative)
    return found


def flatten(host: Host, lowers: Sequence[Path], layer: Path, max_bytes: int | None = None) -> None:
    """Join a stack (`lowers` bottom first) into the new layer `layer`, which is complete and flushed on return.

    Instances see the same in it as in the stack: FIFOs and attributes too, but no setuid bits. Hard links become files
    of their own, as an overlay makes them at the first write. Raises SandboxFailed, and leaves nothing then.
    """
    _publish(
        host,
        layer,
        lambda dest: materialise(lowers, None, dest, max_bytes, exact=True),
        "the layers can't be joined",
    )


def _publish(host: Host, layer: Path, fill: Callable[[Path], None], failure: str) -> None:
    """Let `fill` make a directory, and name it `layer` when it is complete and flushed. Leaves nothing if it fails."""
    parent = layer.with_name(f".{layer.name}.part")
    host.remove(parent)
    try:
        parent.mkdir(mode=0o700)
        fill(parent / "layer")
        host.own(parent / "layer")
        _flush(parent)
        (parent / "layer").rename(layer)
        _fsync_directory(layer.parent)
    except OSError as error:
        raise SandboxFailed(f"{failure} ({error.strerror})", where=str(layer)) from None
    finally:
        host.remove(parent)


def materialise(
    lowers: Sequence[Path], upper: Path | None, dest: Path, max_bytes: int | None = None, *, exact: bool = False
) -> None:
    """Copy the merged tree to the new directory `dest`: regular files, directories, symlinks (as they are), and
    `user.*` attributes. Sockets and devices are left out, and FIFOs unless `exact`; setuid bits too. Holes stay holes.
    Raises SandboxFailed when it would be larger than `max_bytes` of blocks, or does not fit; UnsafePath for paths of
    64 kB.
    """
    try:
        dest.mkdir()
        with Cursor(stack_of(lowers, upper)) as source, Cursor([dest]) as target:
            _Copy(source, target, max_bytes, exact).run()
    except OSError as error:
        raise SandboxFailed(f"the copy failed ({error.strerror})", where=str(dest)) from None


def _copy_layer(upper: Path, dest: Path) -> None:
    """Copy one layer as it is, with what marks deletions and replaced directories. Hard links become files."""
    dest.mkdir()
    with Cursor([upper]) as source, Cursor([dest]) as target:
        _LayerCopy(source, target, None, exact=True).run()
    dest.chmod(stat.S_IMODE(upper.stat().st_mode) & PERMISSIONS)


class _Copy:
    """One copy of a merged tree."""

    def __init__(self, source: Cursor, target: Cursor, left: int | None, exact: bool) -> None:
        self.source, self.target, self.left, self.exact = source, target, left, exact

    def run(self) -> None:
        """Everything below the top, depth first."""
        queues = [iter(self.names())]
        entered: list[tuple[str, os.stat_result, dict[str, bytes]]] = []
        length = 0
        while queues:
            for name in queues[-1]:
                found = self.look(name)
                if found is None:
                    continue
                if not stat.S_ISDIR(found[0].st_mode):
                    self.file(name, *found)
                    continue
                entered.append((name, found[0], self.attributes(name, found[1], found[0])))
                length += len(name) + 1
                if length > stack.MAX_PATH:
                    stack.check_path("/".join(each for each, _, _ in entered))
                os.mkdir(name, 0o700, dir_fd=self.target.fd)
                self.source.enter(name)
                self.target.enter(name)
                queues.append(iter(self.names()))
                break
            else:
                queues.pop()
                if queues:
                    self.source.leave()
                    self.target.leave()
                    name, status, attributes = entered.pop()
                    length -= len(name) + 1
                    self.finish(name, status, attributes)

    def names(self) -> list[str]:
        """What to copy of the directory at hand."""
        return self.source.merged()

    def look(self, name: str) -> tuple[os.stat_result, int] | None:
        """Its status, and the directory that holds it."""
        return self.source.look(name)

    def attributes(self, name: str, directory: int, status: os.stat_result) -> dict[str, bytes]:
        """Attributes as the copy has to hold them."""
        return {stack.stored(key): value for key, value in stack.attributes(name, directory, status).items()}

    def file(self, name: str, status: os.stat_result, directory: int) -> None:
        """One entry that is no directory."""
        mode, target = status.st_mode, self.target.fd
        if stat.S_ISLNK(mode):
            os.symlink(os.readlink(name, dir_fd=directory), name, dir_fd=target)
        elif stat.S_ISREG(mode):
            self.spend(status.st_blocks * 512, name)
            _copy_file(name, status, directory, target)
            self.finish(name, status, self.attributes(name, directory, status))
        elif stat.S_ISFIFO(mode) and self.exact:
            os.mkfifo(name, 0o600, dir_fd=target)
            self.finish(name, status, {})

    def finish(self, name: str, status: os.stat_result, attributes: dict[str, bytes]) -> None:
        """Attributes, times, and last the mode, which may forbid the rest."""
        target = self.target.fd
        for key, value in attributes.items():
            os.setxattr(f"/proc/self/fd/{target}/{name}", key, value, follow_symlinks=False)
        times = (status.st_atime_ns, status.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)
        os.chmod(name, status.st_mode & PERMISSIONS, dir_fd=target)

    def spend(self, size: int, where: str) -> None:
        """Take from what may still be copied."""
        if self.left is not None:
            self.left -= size
            if self.left < 0:
                raise SandboxFailed("the tree is larger than allowed", where=where)


class _LayerCopy(_Copy):
    """One copy of a single layer: whiteouts and opaque marks are content, too."""

    def names(self) -> list[str]:
        """Everything."""
        return [name for name, _ in self.source.entries()]

    def look(self, name: str) -> tuple[os.stat_result, int] | None:
        """As it is."""
        return os.lstat(name, dir_fd=self.source.fd), self.source.fd

    def attributes(self, name: str, directory: int, status: os.stat_result) -> dict[str, bytes]:
        """With the mark of a replaced directory; the overlay's other notes are about the place where it lay."""
        found = super().attributes(name, directory, status)
        if stat.S_ISDIR(status.st_mode):
            with stack.readable(name, directory, status), contextlib.suppress(OSError):
                path = f"/proc/self/fd/{directory}/{name}"
                found[stack.OPAQUE[0]] = os.getxattr(path, stack.OPAQUE[0], follow_symlinks=False)
        return found

    def file(self, name: str, status: os.stat_result, directory: int) -> None:
        """Whiteouts are devices that everybody may make."""
        if stack.is_whiteout(status):
            os.mknod(name, stat.S_IFCHR, 0, dir_fd=self.target.fd)
        else:
            super().file(name, status, directory)


def _copy_file(name: str, status: os.stat_result, directory: int, target: int) -> None:
    source = stack.open_file(name, directory, status)
    try:
        dest = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=target)
        try:
            size = os.fstat(source).st_size
            os.ftruncate(dest, size)
            for start, end in _data(source, size):
                _copy_range(source, dest, start, end)
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
