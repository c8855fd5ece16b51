"""What a process works with is not collected under it: it holds a shared lock on each thing until it ends.

The ledger and the table of campaigns say what is needed for good. This says what is in hand: an export, a bundle or an
environment between the moment in which it was made and the row that will name it, or while something runs from it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator import locks, scratch

_held: dict[Path, int] = {}  # lock file → descriptor, for this process's life; one for each commit or environment
_guard = threading.Lock()


def use(lock: Path) -> None:
    """From now on, and until this process ends, whatever `lock` stands for is in use. Call before making it.

    Waits while a collector removes that very thing. In a directory that this user can't write, nothing of this user can
    be collected either, so it is no error there. Raises Failed where the disk is full.
    """
    with _guard, scratch.writing(lock):
        if lock not in _held:
            with contextlib.suppress(PermissionError):
                lock.parent.mkdir(parents=True, exist_ok=True)
                descriptor = locks.take(lock, fcntl.LOCK_SH)
                assert descriptor is not None, "it waits"
                _held[lock] = descriptor


@contextmanager
def unused(lock: Path) -> Iterator[bool]:
    """Whether no process uses it; then none can while the block runs. The lock file is gone afterwards."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    descriptor = locks.take(lock)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        lock.unlink(missing_ok=True)  # before the lock is let go: whoever waits for it sees that the file is gone
        os.close(descriptor)


def busy(lock: Path) -> bool:
    """Whether a process uses it now. Creates nothing."""
    return locks.held(lock, fcntl.LOCK_EX)[0]
