"""Safe reading of what an instance left: no symlink is followed, no FIFO or device is opened, sizes are capped."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from sandbox.errors import UnsafePath

OPENAT2 = 437  # the same number on every architecture
NO_MAGICLINKS, NO_SYMLINKS, BENEATH = 0x02, 0x04, 0x08


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_libc = ctypes.CDLL(None, use_errno=True)


def openat2(directory: int, relative: str, flags: int) -> int:
    """A descriptor of what lies below an open directory, on a way without any symlink. Raises OSError as it comes."""
    how = _How(flags, 0, BENEATH | NO_SYMLINKS | NO_MAGICLINKS)
    name = os.fsencode(relative)
    result = int(_libc.syscall(OPENAT2, directory, name, ctypes.byref(how), ctypes.sizeof(how)))
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), relative)
    return result


def open_beneath(root: Path, relative: str, flags: int = os.O_RDONLY) -> int:
    """A descriptor of `relative` below `root`, opened with openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS).

    Opens a FIFO without waiting, but does open it: for a regular file's content use `read_file`.
    Raises FileNotFoundError, or UnsafePath for a symlink anywhere below root, `..` out of it, or no permission.
    """
    if "\0" in relative:
        raise UnsafePath("a path with NUL", where=repr(relative))
    top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        wanted = flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        if flags & os.O_PATH:
            wanted = flags | os.O_CLOEXEC
        return openat2(top, relative, wanted)
    except OSError as error:
        code = error.errno
    finally:
        os.close(top)
    where = f"{root}/{relative}"
    if code in (errno.ENOENT, errno.ENOTDIR):
        raise FileNotFoundError(code, os.strerror(code), where)
    if code == errno.ELOOP:
        raise UnsafePath("a symlink, which is not followed", where=where)
    if code == errno.EXDEV:
        raise UnsafePath("leads out of the instance's files", where=where)
    raise UnsafePath(f"can't be read ({os.strerror(code or 0)})", where=where)


def open_file(root: Path, relative: str) -> BinaryIO:
    """The regular file `relative` below `root`, open for reading; close it. It may be sparse and seem very large.

    Raises FileNotFoundError, or UnsafePath for symlinks anywhere below root, `..`, and everything but regular files.
    """
    handle = open_beneath(root, relative, os.O_PATH)  # opens nothing yet, so a FIFO or a device notices nothing
    return _opened(handle, f"{root}/{relative}")


def read_file(root: Path, relative: str, max_bytes: int) -> bytes:
    """Up to `max_bytes` of the regular file `relative` below `root`. Raises as `open_file`."""
    return _content(open_file(root, relative), max_bytes)


def read_at(directory: int, name: str, max_bytes: int, where: str) -> bytes:
    """Up to `max_bytes` of the regular file `name` (no path) in an open directory. Raises as `open_file`."""
    handle = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
    return _content(_opened(handle, where), max_bytes)


def _opened(handle: int, where: str) -> BinaryIO:
    """What an O_PATH descriptor names, open for reading, if it is a regular file. Closes the descriptor."""
    try:
        found = os.fstat(handle)
        if stat.S_ISLNK(found.st_mode):
            raise UnsafePath("a symlink, which is not followed", where=where)
        if not stat.S_ISREG(found.st_mode):
            raise UnsafePath("not a regular file", where=where)
        try:
            descriptor = os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise UnsafePath(f"can't be read ({error.strerror})", where=where) from None
    finally:
        os.close(handle)
    return open(descriptor, "rb")


def _content(file: BinaryIO, max_bytes: int) -> bytes:
    with file:
        size = os.fstat(file.fileno()).st_size
        return file.read(min(max_bytes, size))  # reading takes as much memory as it is asked for
