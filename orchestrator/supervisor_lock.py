"""One supervisor per home."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator import locks
from orchestrator.errors import Failed
from orchestrator.locks import Holder as Holder

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.home import Home


@contextmanager
def supervisor_lock(home: Home, command: str) -> Iterator[None]:
    """Hold the lock. Raises Failed that names the process that holds it already."""

    def taken(by: Holder | None) -> Failed:
        who = f"`sia {by.command}` with process id {by.pid}" if by else "another supervisor"
        fix = f"stop it first: kill {by.pid}" if by else "wait a moment and try again"
        return Failed(f"{who} runs this repository already", where=str(home.root), fix=fix)

    with locks.hold_or(_path(home), taken, command):
        yield


def holder(home: Home) -> Holder | None:
    """Who holds the lock now, or None."""
    return locks.look(_path(home))


def _path(home: Home) -> Path:
    return home.run / "supervisor.lock"
