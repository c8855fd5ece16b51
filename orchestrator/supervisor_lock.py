"""One supervisor per home: a flock that dies with its process, and says who holds it."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator.errors import Failed

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.home import Home

ATTEMPTS, PAUSE = 6, 0.05  # `holder` takes the lock for a moment; that must not make a start fail


@dataclass(frozen=True)
class Holder:
    """The process that holds the lock. `since` in Unix seconds."""

    pid: int
    since: float
    command: str


@contextmanager
def supervisor_lock(home: Home, command: str) -> Iterator[None]:
    """Hold the lock. Raises Failed that names the process that holds it already."""
    descriptor = os.open(_path(home), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        for attempt in range(ATTEMPTS):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if attempt + 1 < ATTEMPTS:
                    time.sleep(PAUSE)
        else:
            other = _read(descriptor)
            who = f"`sia {other.command}` with process id {other.pid}" if other else "another supervisor"
            fix = f"stop it first: kill {other.pid}" if other else "wait a moment and try again"
            raise Failed(f"{who} runs this repository already", where=str(home.root), fix=fix)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()} {time.time():.3f} {command}\n".encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(home: Home) -> Holder | None:
    """Who holds the lock now, or None."""
    try:
        descriptor = os.open(_path(home), os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read(descriptor)
        return None
    finally:
        os.close(descriptor)


def _path(home: Home) -> Path:
    return home.run / "supervisor.lock"


def _read(descriptor: int) -> Holder | None:
    fields = os.pread(descriptor, 200, 0).decode("ascii", "replace").split()
    try:
        return Holder(int(fields[0]), float(fields[1]), fields[2])
    except (IndexError, ValueError):
        return None  # it holds the lock but has not written its name yet
