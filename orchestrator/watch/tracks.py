"""What can't be read from one row: rates, histories, how long an instance has been quiet."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import processes
from orchestrator.home import Home
from orchestrator.watch.values import Instance

QUIET_AFTER = 30.0  # seconds without an exchange, before an instance is called quiet
STALE_AFTER = 15.0  # seconds without a word from a living owner
HISTORY = 60  # samples of cpu and tokens that an instance keeps
WAITS = ("read_stdin",)  # actions after which the main instance may rest until somebody writes
_ALIVE_EVERY = 2.0  # seconds between two looks at whether an owner lives


@dataclass
class Track:
    """One instance over time. `active`: when its last exchange ended, in Unix seconds."""

    iterations: int
    tokens: int
    cpu: float | None
    written: float
    active: float | None = None
    percent: float | None = None
    cpu_history: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    token_history: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))

    def note(self, row: sqlite3.Row, now: float) -> None:
        """The row as it is now, if its owner has written it again."""
        passed = row["updated"] - self.written
        if row["iterations"] != self.iterations:
            self.iterations, self.active = row["iterations"], now
        if passed <= 0:
            return
        if row["cpu"] is not None and self.cpu is not None:
            self.percent = max(0.0, 100 * (row["cpu"] - self.cpu) / passed)
            self.cpu_history.append(self.percent)
        self.token_history.append(max(0.0, (row["tokens"] - self.tokens) / passed))
        self.tokens, self.cpu, self.written = row["tokens"], row["cpu"], row["updated"]


class Tracks:
    """All running instances over time."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._tracks: dict[str, Track] = {}
        self._owners: dict[tuple[int, float], tuple[float, bool]] = {}
        self._exchanges: sqlite3.Connection | None = None

    def instances(self, rows: list[sqlite3.Row], now: float) -> tuple[Instance, ...]:
        """The rows of `running` with what is known of them over time; main first, then in the order of their start."""
        for id in self._tracks.keys() - {row["id"] for row in rows}:
            del self._tracks[id]
        heard: dict[int, float] = {}
        for row in rows:
            heard[row["supervisor"]] = max(row["updated"], heard.get(row["supervisor"], 0.0))
        return tuple(self._instance(row, now, now - heard[row["supervisor"]]) for row in rows)

    def close(self) -> None:
        """Release the connection to the exchange store."""
        if self._exchanges is not None:
            self._exchanges.close()
            self._exchanges = None

    def _instance(self, row: sqlite3.Row, now: float, unheard: float) -> Instance:
        journal = row["journal"] or row["id"]
        track = self._tracks.get(row["id"])
        if track is None:
            track = Track(row["iterations"], row["tokens"], row["cpu"], row["updated"])
            track.active = self._last_exchange(journal) if row["iterations"] else None
            self._tracks[row["id"]] = track
        track.note(row, now)
        quiet = None if track.active is None else max(0.0, now - track.active)
        until = now if self._lives(row["supervisor"], row["supervisor_started"]) else row["updated"]
        pause = row["paused_seconds"] + (until - row["paused"] if row["paused"] is not None else 0.0)
        elapsed = max(0.0, until - row["started"] - pause)
        percent = track.percent
        if percent is None and row["cpu"] is not None and elapsed > 0:
            percent = 100 * row["cpu"] / elapsed
        return Instance(
            id=row["id"],
            kind=row["kind"],
            label=row["label"],
            candidate=row["arm"] if row["kind"] == "test" else row["label"],
            task=row["task"],
            repeat=row["repeat"],
            campaign=row["campaign"],
            state=self._state(row, quiet, unheard),
            said=row["state"],
            iteration=row["iterations"],
            last_action=row["last_action"],
            tokens=row["tokens"],
            cost=row["cost"],
            cpu_percent=percent,
            memory_mb=row["memory_mb"],
            disk_mb=row["disk_mb"],
            elapsed=elapsed,
            limit=row["limit_seconds"],
            quiet=quiet,
            started=row["started"],
            updated=row["updated"],
            paused_since=row["paused"],
            directory=Path(row["directory"]) if row["directory"] else None,
            journal=journal,
            owner=row["supervisor"],
            cpu_history=tuple(track.cpu_history),
            token_history=tuple(track.token_history),
        )

    def _state(self, row: sqlite3.Row, quiet: float | None, unheard: float) -> str:
        if not self._lives(row["supervisor"], row["supervisor_started"]):
            return "orphan"
        if row["paused"] is not None:
            return "paused"
        if row["state"] not in ("running", "starting"):
            return str(row["state"])
        if not row["iterations"]:
            return "starting"
        if unheard > STALE_AFTER:
            return "stale"
        if quiet is None or quiet <= QUIET_AFTER:
            return "running"
        return "waiting" if row["kind"] == "main" and row["last_action"] in WAITS else "quiet"

    def _lives(self, pid: int, since: float) -> bool:
        now, known = time.monotonic(), self._owners.get((pid, since))
        if known is None or now - known[0] > _ALIVE_EVERY:
            known = self._owners[pid, since] = (now, processes.alive(pid, since))
            for old in [key for key, (seen, _) in self._owners.items() if now - seen > 60]:
                del self._owners[old]
        return known[1]

    def _last_exchange(self, journal: str) -> float | None:
        """When the last exchange ended that is in the store already: for an instance that ran before we looked."""
        try:
            if self._exchanges is None:
                path = (self._home.exchanges / "exchanges.db").absolute()
                self._exchanges = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, check_same_thread=False)
            query = "SELECT record FROM entry WHERE journal = ? ORDER BY n DESC LIMIT 1"
            row = self._exchanges.execute(query, (journal,)).fetchone()
            if row is None:
                return None
            record = json.loads(row[0])
            return float(record["time"]) + float(record["seconds"])
        except (sqlite3.Error, ValueError, KeyError, TypeError):
            return None
