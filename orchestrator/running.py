"""Rows of the table of what runs now, for `sia status` and `sia watch`; their owner writes once a second at most."""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from orchestrator.processes import started

if TYPE_CHECKING:
    from orchestrator.broker import Usage
    from orchestrator.journal import Exchange
    from sandbox.pauses import Pauses
    from sandbox.watch import Use

EVERY = 1.0  # seconds between two writes
AT_LEAST = 5.0  # seconds after which a row is written though nothing changed: its owner lives
_ELEMENT = re.compile(r"<\s*([A-Za-z_][\w.-]{0,39})", re.ASCII)


@dataclass(frozen=True)
class Now:
    """What changes of a row while its instance runs. Amounts that nobody knows are None; times in Unix seconds."""

    state: str = "running"
    iterations: int = 0
    tokens: int = 0
    cost: float | None = None
    last_action: str | None = None  # name of the element in the last answer
    cpu: float | None = None  # seconds
    memory_mb: float | None = None
    disk_mb: float | None = None
    paused: float | None = None  # since when
    paused_seconds: float = 0.0  # of pauses that are over
    journal: str | None = None
    directory: str | None = None

    @classmethod
    def of(
        cls, state: str, usage: Usage | None, use: Use | None, pauses: Pauses | None, last_action: str | None
    ) -> Now:
        """From what the broker counted and the watchdogs saw."""
        return cls(
            state=state,
            iterations=usage.iterations if usage else 0,
            tokens=usage.tokens if usage else 0,
            cost=usage.cost if usage else 0.0,
            last_action=last_action,
            cpu=use.cpu if use else None,
            memory_mb=use.memory_mb if use else None,
            disk_mb=use.disk_mb if use else None,
            paused=pauses.wall if pauses else None,
            paused_seconds=pauses.total if pauses else 0.0,
        )


_COLUMNS = [field.name for field in fields(Now)]
# What does not change comes with the first write; later ones leave it out.
_KEPT = ("journal", "directory")
_UPDATE = (
    "UPDATE running SET "
    + ", ".join(f"{name} = coalesce(?, {name})" if name in _KEPT else f"{name} = ?" for name in _COLUMNS)
    + ", updated = ? WHERE id = ?"
)


def action_of(exchange: Exchange) -> str | None:
    """The name of the first element of an answer, made of harmless characters; None if it is no answer."""
    if exchange.kind != "infer" or exchange.error is not None:
        return None
    return action_name(exchange.asked.prefix + exchange.reply[:4000]) or "?"


def action_name(answer: str) -> str:
    """The name of the first element in the beginning of an answer, made of harmless characters; "" if it has none."""
    return found[1] if (found := _ELEMENT.search(answer)) else ""


class RunningRows:
    """Decides which rows are worth a write. Not thread-safe; does not commit."""

    def __init__(self) -> None:
        self._written: dict[str, tuple[float, Now]] = {}
        self._last = 0.0

    def due(self) -> bool:
        """Whether a second has passed since the last write."""
        return time.monotonic() - self._last >= EVERY

    def changed(self, rows: Mapping[str, Now]) -> dict[str, Now]:
        """Those that differ from what was written, or were not written for a while. They count as written."""
        self._last = now = time.monotonic()
        news = {
            id: row
            for id, row in rows.items()
            if (before := self._written.get(id)) is None or before[1] != row or now - before[0] > AT_LEAST
        }
        self._written = {id: (now, row) if id in news else self._written[id] for id, row in rows.items()}
        return news


def write(connection: sqlite3.Connection, rows: Mapping[str, Now]) -> None:
    """Store what is known of running instances, by id."""
    now = time.time()
    values = [(*(getattr(row, name) for name in _COLUMNS), now, id) for id, row in rows.items()]
    connection.executemany(_UPDATE, values)


class RunningRow:
    """The main instance's row."""

    def __init__(self, connection: sqlite3.Connection, nonce: str, label: str, state: str) -> None:
        self.state = state
        self._db, self._nonce = connection, nonce
        self._rows = RunningRows()
        now, pid = time.time(), os.getpid()
        connection.execute(
            "INSERT INTO running (id, kind, supervisor, supervisor_started, label, state, started, updated, journal)"
            " VALUES (?, 'main', ?, ?, ?, ?, ?, ?, ?)",
            (nonce, pid, started(pid) or now, label, state, now, now, nonce),
        )

    def update(self, now: Now) -> None:
        """Write what is known, if anything changed and a second has passed."""
        if self._rows.due() and (news := self._rows.changed({self._nonce: now})):
            write(self._db, news)

    def remove(self) -> None:
        """It runs no more."""
        self._db.execute("DELETE FROM running WHERE id = ?", (self._nonce,))
