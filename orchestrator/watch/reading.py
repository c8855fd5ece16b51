"""How a watcher reads: connections that can't write, and owners found without touching their locks."""

from __future__ import annotations

import os
from pathlib import Path

from orchestrator import database, processes
from orchestrator.exchanges import ExchangeStore
from orchestrator.home import Home
from orchestrator.watch.values import Supervisor


def store(home: Home) -> ExchangeStore | None:
    """The exchange store for looking; None while there is none."""
    connection = database.look(home.database)  # migrates
    if connection is None:
        return None
    connection.close()
    if not (home.exchanges / "exchanges.db").exists():
        return None
    return ExchangeStore(home.exchanges, home.database, read_only=True)


def owner(path: Path) -> int | None:
    """The living process that took the lock `path` and wrote its id there; None if it is gone.

    Unlike `locks.holder` it does not take the lock for a moment, which could make its owner's start fail.
    """
    found = _words(path)
    return found[0] if found else None


def supervisor(home: Home) -> Supervisor | None:
    """The process that keeps main alive."""
    found = _words(home.run / "supervisor.lock")
    if found is None or len(found[1]) < 3:
        return None
    try:
        return Supervisor(found[0], float(found[1][1]), found[1][2])
    except ValueError:
        return None


def _words(path: Path) -> tuple[int, list[str]] | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        words = os.pread(descriptor, 200, 0).decode("ascii", "replace").split()
        written = os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
    if not words or not words[0].isdigit():
        return None  # let go, or not written yet
    since = processes.started(int(words[0]))
    if since is None or since > written + processes.TOLERANCE:
        return None  # gone; its id may be another process's by now
    return int(words[0]), words


def tail(path: Path, size: int) -> tuple[bytes, int]:
    """The last `size` bytes of a file of ours, and how many lie before them; (b"", 0) where there is none."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            start = max(0, end - size)
            file.seek(start)
            return file.read(size), start
    except OSError:
        return b"", 0
