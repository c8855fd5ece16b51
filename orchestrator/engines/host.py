"""An engine program as the supervisor keeps it: started once, restarted when it dies, gone when the supervisor is gone."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path


class EngineDown(Exception):
    """The engine program does not run now, and why. Raised by `EngineHost.connect`."""


class EngineHost:
    """One engine program for all lines. Thread-safe.

    `command` is an argv list, run in `cwd`; `python` as its first word is this interpreter. Its stderr goes to `log`.
    """

    def __init__(self, name: str, command: Sequence[str], cwd: Path, log: Path) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Start the program; does not wait until it answers. Raises ConfigError if the command doesn't exist."""

    def wait_ready(self, timeout: float = 120.0) -> int:
        """Wait until it answers; its token limit. Raises ConfigError with its last words if it ends or stays silent."""
        raise NotImplementedError

    def connect(self) -> socket.socket:
        """A new engine line. Restarts a dead program, with capped backoff. Raises EngineDown while it can't be had."""
        raise NotImplementedError

    def close(self) -> None:
        """Stop the program and all it started; they are gone when this returns."""
