"""The main instance's row in the table of what runs now, for `sia status`."""

from __future__ import annotations

import os
import sqlite3
import time
from typing import TYPE_CHECKING

from orchestrator.processes import started

if TYPE_CHECKING:
    from orchestrator.broker import Usage

EVERY = 1.0  # seconds between two writes


class RunningRow:
    """One row, written at most once a second."""

    def __init__(self, connection: sqlite3.Connection, nonce: str, label: str, state: str) -> None:
        self.state = state
        self._db, self._nonce = connection, nonce
        self._written = 0.0
        now, pid = time.time(), os.getpid()
        connection.execute(
            "INSERT INTO running (id, kind, supervisor, supervisor_started, label, state, started, updated)"
            " VALUES (?, 'main', ?, ?, ?, ?, ?, ?)",
            (nonce, pid, started(pid) or now, label, state, now, now),
        )

    def update(self, usage: Usage, *, news: bool) -> None:
        """Write the counts, if anything changed or a few seconds passed."""
        passed = time.monotonic() - self._written
        if passed < EVERY or not (news or passed > 5 * EVERY):
            return
        self._written = time.monotonic()
        self._db.execute(
            "UPDATE running SET state = ?, iterations = ?, tokens = ?, cost = ?, updated = ? WHERE id = ?",
            (self.state, usage.iterations, usage.tokens, usage.cost, time.time(), self._nonce),
        )

    def remove(self) -> None:
        """It runs no more."""
        self._db.execute("DELETE FROM running WHERE id = ?", (self._nonce,))
