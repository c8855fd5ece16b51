"""Locks that the kernel releases when their holder is gone, however it went."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import Failed


@contextmanager
def hold(path: Path, what: str, fix: str) -> Iterator[None]:
    """Hold `path` while the block runs; raises Failed naming the holder when another process has it.

    The file holds our process id for people, and is removed at the end: an empty `run/` means that nothing runs.
    """
    descriptor = take(path)
    if descriptor is None:
        raise Failed(f"{what} (process {holder(path) or 'unknown'})", fix=fix)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock is let go: whoever opened the old file sees that it is gone
        os.close(descriptor)


def holder(path: Path) -> int | None:
    """The process that holds `path` now, or None. Creates nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 32, 0).strip()
        return int(text) if text.isdigit() else 0
    finally:
        os.close(descriptor)
    return None


def take(path: Path, how: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> int | None:
    """A locked descriptor of the file `path`, created if missing; None if it is held.

    Whoever removes the file must hold it, and does so before letting go."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, how)
        except BlockingIOError:
            os.close(descriptor)
            return None
        try:
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)  # the former holder removed the file between our open and our lock: take the new one
