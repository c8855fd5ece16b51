"""Locks that the kernel releases when their holder is gone, however it went. Each says who holds it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import Failed

ATTEMPTS, PAUSE = 6, 0.05  # `look` takes the lock for a moment; that must not make a start fail


@dataclass(frozen=True)
class Holder:
    """The process that holds a lock, `since` in Unix seconds; `command` is a word about what it does, or ""."""

    pid: int
    since: float
    command: str


@contextmanager
def hold(path: Path, what: str, fix: str) -> Iterator[None]:
    """Hold `path` while the block runs; raises Failed with `what` and the holder when another process has it.

    The file holds our process id for people, and is removed at the end: an empty `run/` means that nothing runs.
    """

    def taken(by: Holder | None) -> Failed:
        return Failed(f"{what} (process {by.pid if by else 'unknown'})", fix=fix)

    with hold_or(path, taken):
        yield


@contextmanager
def hold_or(path: Path, taken: Callable[[Holder | None], Failed], command: str = "") -> Iterator[None]:
    """`hold` with another message: `taken` gets the holder, or None where it has not written its name yet."""
    for attempt in range(ATTEMPTS):
        descriptor = take(path)
        if descriptor is not None:
            break
        if attempt + 1 < ATTEMPTS:
            time.sleep(PAUSE)
    else:
        raise taken(look(path))
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {time.time():.3f} {command}".rstrip().encode() + b"\n", 0)
        yield
    finally:
        path.unlink(missing_ok=True)  # before the lock is let go: whoever opened the old file sees that it is gone
        os.close(descriptor)


def holder(path: Path) -> int | None:
    """The process that holds `path` now (0: it has not written its id yet), or None. Creates nothing."""
    is_held, by = held(path)
    return (by.pid if by else 0) if is_held else None


def look(path: Path) -> Holder | None:
    """Who holds `path` now, or None; also where it has not written its name yet. Creates nothing."""
    return held(path)[1]


def held(path: Path, how: int = fcntl.LOCK_SH) -> tuple[bool, Holder | None]:
    """Whether somebody's lock on `path` keeps us from taking it so now, and what is written there. Creates nothing."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False, None
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return True, _read(descriptor)
    finally:
        os.close(descriptor)
    return False, None


def _read(descriptor: int) -> Holder | None:
    words = os.pread(descriptor, 200, 0).decode("ascii", "replace").split()
    try:
        return Holder(int(words[0]), float(words[1]), words[2] if len(words) > 2 else "")
    except (IndexError, ValueError):
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
