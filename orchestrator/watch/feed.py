"""The overview: instances, campaigns, ledger, events. One cheap `poll` after the other, from one thread."""

from __future__ import annotations

import sqlite3
import time
from collections import deque

from orchestrator import database
from orchestrator.campaign_view import DIED
from orchestrator.errors import ConfigError
from orchestrator.home import Home
from orchestrator.watch import reading
from orchestrator.watch.tracks import HISTORY as HISTORY
from orchestrator.watch.tracks import QUIET_AFTER as QUIET_AFTER
from orchestrator.watch.tracks import STALE_AFTER as STALE_AFTER
from orchestrator.watch.tracks import Tracks
from orchestrator.watch.values import (
    CampaignLine,
    Event,
    Instance,
    LedgerNow,
    OrphanLine,
    PromotionLine,
    RequestLine,
    Snapshot,
    Supervisor,
)
from sandbox.orphans import look as look_for_orphans

EVENTS = 2000  # newest events that are held
CAMPAIGNS = 200  # newest campaigns that are listed
_OWNERS_EVERY = 1.0  # seconds between looks at who holds the locks
_ORPHANS_EVERY = 30.0  # the same for what a dead owner left: it walks /proc
_SKIPPED = (  # what a disqualified candidate has not run will not come
    "SELECT count(*) FROM trial WHERE campaign = ? AND state = 'planned' AND arm IN"
    " (SELECT arm FROM trial WHERE campaign = ? AND state = 'done' AND disqualified IS NOT NULL)"
)
_ANSWERED = 60.0  # seconds for which an answered request is shown


class Feed:
    """Reads what runs. Not for several threads at once. `close` when done."""

    def __init__(self, home: Home) -> None:
        """Opens nothing yet: a home without a database is fine, and is looked at again in every poll."""
        self._home = home
        self._db: sqlite3.Connection | None = None
        self._inode = 0
        self._tracks = Tracks(home)
        self._serial = 0
        self._version: int | None = None
        self._rows: list[sqlite3.Row] = []
        self._ledger: LedgerNow | None = None
        self._promotions: tuple[PromotionLine, ...] = ()
        self._stored: tuple[CampaignLine, ...] = ()
        self._counts: dict[str, tuple[object, int, int, int]] = {}
        self._events: deque[Event] = deque(maxlen=EVENTS)
        self._requests: tuple[RequestLine, ...] = ()
        self._supervisor: Supervisor | None = None
        self._owned: dict[str, bool] = {}
        self._left: tuple[OrphanLine, ...] = ()
        self._owners_at = float("-inf")
        self._orphans_at: float | None = None
        self._shown: tuple[object, ...] = ()

    def poll(self) -> Snapshot:
        """The present state. Reads only what changed. Never raises for the state of the files: see `problem`.

        Raises ConfigError when the database was written by a newer SIA.
        """
        now, problem = time.time(), None
        try:
            self._read()
        except sqlite3.Error as error:
            problem = f"the database can't be read: {error}"
            self._disconnect()
        except ConfigError as error:
            if "newer" in error.fix:
                raise
            problem = error.what
            self._disconnect()
        self._look_around()
        instances = self._tracks.instances(self._rows, now)
        campaigns = tuple(self._with_owner(line) for line in self._stored)
        states = (
            *(problem, self._supervisor, self._left),
            *(one.state for one in instances),
            *(one.state for one in campaigns),
        )
        if states != self._shown:
            self._shown, self._serial = states, self._serial + 1
        gone = [OrphanLine("instance", one.label) for one in instances if one.state == "orphan"]
        return Snapshot(
            serial=self._serial,
            time=now,
            home=self._home.root,
            checkout=self._home.checkout,
            supervisor=self._supervisor,
            ledger=self._ledger,
            promotions=self._promotions,
            instances=instances,
            campaigns=campaigns,
            events=tuple(self._events),
            orphans=(*gone, *self._left),
            requests=tuple(one for one in self._requests if one.result is None or one.time > now - _ANSWERED),
            problem=problem,
        )

    def close(self) -> None:
        """Release the connections."""
        self._disconnect()
        self._tracks.close()

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- reading ------------------------------------------------------------------------------------------------------

    def _disconnect(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db, self._version = None, None

    def _read(self) -> None:
        if self._db is None or self._replaced():
            self._disconnect()
            self._events.clear()
            self._db = database.look(self._home.database)
            if self._db is None:
                return
            self._inode = self._home.database.stat().st_ino
        version = self._db.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return
        self._db.execute("BEGIN")  # one state of the database for all of it
        try:
            self._read_all(self._db)
        finally:
            self._db.execute("COMMIT")
        self._version, self._serial = version, self._serial + 1

    def _replaced(self) -> bool:
        """Whether the file is another one than the one that we have open: removed, or restored from a backup."""
        try:
            return self._home.database.stat().st_ino != self._inode
        except OSError:
            return True

    def _read_all(self, db: sqlite3.Connection) -> None:
        self._rows = db.execute("SELECT * FROM running ORDER BY kind = 'test', started, id").fetchall()
        self._ledger = _ledger(db)
        self._promotions = _promotions(db)
        self._stored = self._campaigns(db)
        newest = self._events[-1].id if self._events else 0
        query = "SELECT id, time, kind, subject, text FROM event WHERE id > ? ORDER BY id DESC LIMIT ?"
        self._events.extend(Event(*row) for row in reversed(db.execute(query, (newest, EVENTS)).fetchall()))
        query = (
            "SELECT id, time, kind, subject, text, asked_by, taken, refused, result FROM request"
            " WHERE id IN (SELECT id FROM request WHERE taken IS NULL)"
            " OR id > (SELECT coalesce(max(id), 0) - 20 FROM request) ORDER BY id"
        )
        self._requests = tuple(
            RequestLine(**{**dict(row), "refused": bool(row["refused"])}) for row in db.execute(query)
        )

    def _campaigns(self, db: sqlite3.Connection) -> tuple[CampaignLine, ...]:
        verdicts: dict[str, list[tuple[str, str]]] = {}
        for row in db.execute("SELECT campaign, arm, verdict FROM verdict ORDER BY rowid"):
            verdicts.setdefault(row["campaign"], []).append((row["arm"], row["verdict"]))
        query = "SELECT id, state, file, created, finished, error FROM campaign ORDER BY created DESC, id DESC LIMIT ?"
        lines = []
        for row in db.execute(query, (CAMPAIGNS,)).fetchall():
            trials, done, running = self._count(db, row)
            about = (row["id"], row["state"], row["file"], row["created"], row["finished"])
            lines.append(CampaignLine(*about, trials, done, running, row["error"], tuple(verdicts.get(row["id"], ()))))
        return tuple(lines)

    def _count(self, db: sqlite3.Connection, campaign: sqlite3.Row) -> tuple[int, int, int]:
        """(trials, done, running); of campaigns that are over only once."""
        key = (campaign["state"], campaign["finished"])
        known = self._counts.get(campaign["id"])
        if known is None or known[0] != key or campaign["state"] == "running":
            query = "SELECT state, count(*) FROM trial WHERE campaign = ? GROUP BY state"
            counts = {row[0]: row[1] for row in db.execute(query, (campaign["id"],))}
            skipped = db.execute(_SKIPPED, (campaign["id"], campaign["id"])).fetchone()[0]
            known = (key, sum(counts.values()) - skipped, counts.get("done", 0), counts.get("running", 0))
            self._counts[campaign["id"]] = known
        return known[1], known[2], known[3]

    # -- what lies beside the database --------------------------------------------------------------------------------

    def _look_around(self) -> None:
        now = time.monotonic()
        if now - self._owners_at >= _OWNERS_EVERY or any(
            line.id not in self._owned for line in self._stored if line.state == "running"
        ):
            self._owners_at = now
            self._supervisor = reading.supervisor(self._home)
            self._owned = {
                line.id: reading.owner(self._home.run / f"campaign-{line.id}.lock") is not None
                for line in self._stored
                if line.state == "running"
            }
        if self._orphans_at is None:
            self._orphans_at = now - _ORPHANS_EVERY  # in the second poll: the first one is waited for
        elif now - self._orphans_at >= _ORPHANS_EVERY:
            self._orphans_at = now
            self._left = tuple(OrphanLine(one.kind, one.what) for one in look_for_orphans(self._home.root))

    def _with_owner(self, line: CampaignLine) -> CampaignLine:
        if line.state != "running" or self._owned.get(line.id):
            return line
        return CampaignLine(**{**line.__dict__, "state": DIED, "running": 0})


def _ledger(db: sqlite3.Connection) -> LedgerNow | None:
    row = db.execute(
        "SELECT ledger.state, ledger.generation, generation.candidate, generation.commit_id AS [commit],"
        " ledger.last_good, ledger.probation, ledger.crashes, ledger.cause FROM ledger"
        " JOIN generation ON generation.number = ledger.generation"
    ).fetchone()
    return None if row is None else LedgerNow(**{**dict(row), "probation": bool(row["probation"])})


def _promotions(db: sqlite3.Connection) -> tuple[PromotionLine, ...]:
    query = (
        "SELECT id, kind, candidate, old, new, new_commit, tries, launches, outcome, cause, created, finished"
        " FROM promotion WHERE outcome IS NULL OR id > (SELECT max(id) - 3 FROM promotion) ORDER BY id"
    )
    return tuple(PromotionLine(*row) for row in db.execute(query))


__all__ = ["HISTORY", "QUIET_AFTER", "STALE_AFTER", "Feed", "Instance", "Snapshot"]
