"""Campaigns in the database: what was planned, what ran, what was concluded. No other module writes these tables."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from orchestrator import requests, rerun
from orchestrator.campaign_view import ArmRow, CampaignView, TaskRow, TrialRow, load, resolve
from orchestrator.database import transaction
from orchestrator.errors import ConfigError, UsageError
from orchestrator.processes import started
from orchestrator.running import Now, write

if TYPE_CHECKING:
    from orchestrator.plan import PlannedTrial
    from orchestrator.requests import Request
    from orchestrator.trial import TrialRecord
    from orchestrator.verdict import Verdict


@dataclass(frozen=True)
class Judged:
    """A candidate that a campaign has a verdict on: what the promotion gate looks at."""

    campaign: str
    arm: str
    baseline: str  # commit it was judged against; promotable only while this is the current generation
    proposed: str  # the commit that was named
    judged: str  # J, the commit that ran
    tree: str  # tree hash of J's agent paths
    verdict: str
    numbers: dict[str, Any]  # `verdict.Verdict` as a dict


def find_judged(connection: sqlite3.Connection, candidate: str, campaign: str | None = None) -> Judged:
    """The verdict on `candidate` in `campaign` (id or unique prefix; default: the newest finished one that judged it).

    Raises UsageError if there is none, or if that campaign is not finished.
    """
    if campaign is not None:
        campaign = resolve(connection, campaign)
        state = connection.execute("SELECT state FROM campaign WHERE id = ?", (campaign,)).fetchone()["state"]
        if state != "done":
            raise UsageError(
                f"campaign {campaign} is not finished ({state})", fix=f"finish it: sia campaign resume {campaign}"
            )
    row = connection.execute(
        "SELECT c.id AS campaign, a.name AS arm, c.baseline, a.proposed, a.judged, a.tree, v.verdict, v.numbers"
        " FROM campaign c JOIN arm a ON a.campaign = c.id JOIN verdict v ON v.campaign = c.id AND v.arm = a.name"
        " WHERE a.name = ? AND c.state = 'done' AND (? IS NULL OR c.id = ?) ORDER BY c.created DESC, c.id DESC LIMIT 1",
        (candidate, campaign, campaign),
    ).fetchone()
    if row is None:
        where = f" in campaign {campaign}" if campaign else ""
        raise UsageError(f"no verdict on {candidate!r}{where}", fix=_how_to_judge(connection, candidate))
    return Judged(**{**dict(row), "numbers": json.loads(row["numbers"])})


def _how_to_judge(connection: sqlite3.Connection, candidate: str) -> str:
    row = connection.execute(
        "SELECT c.id, c.state FROM campaign c JOIN arm a ON a.campaign = c.id"
        " WHERE a.name = ? AND c.state IN ('running', 'interrupted') ORDER BY c.created DESC, c.id DESC LIMIT 1",
        (candidate,),
    ).fetchone()
    if row is None:
        return "judge it first: name it under `candidates` in a campaign file, then `sia campaign run FILE`"
    return f"wait for campaign {row['id']} ({row['state']}), or finish it: sia campaign resume {row['id']}"


class CampaignStore:
    """One campaign runner's writes. Thread-safe; each method is one transaction, durable when it returns.

    Raises ConfigError when the disk is full or the database can't be written.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self._lock = threading.Lock()
        self._owner = (os.getpid(), started(os.getpid()))

    def create(
        self,
        *,
        file: str,
        spec: Mapping[str, Any],
        setup: Mapping[str, Any],
        baseline: str,
        arms: Sequence[ArmRow],
        tasks: Sequence[TaskRow],
        plan: Callable[[str], Iterable[PlannedTrial]],
    ) -> str:
        """Store a new campaign with its whole plan, or nothing; returns its id: `c` and a running number."""
        with self._transaction():
            newest = self.connection.execute("SELECT max(CAST(substr(id, 2) AS INTEGER)) FROM campaign").fetchone()[0]
            name = f"c{(newest or 0) + 1:04}"
            self.connection.execute(
                "INSERT INTO campaign (id, created, file, spec, setup, baseline, state)"
                " VALUES (?, ?, ?, ?, ?, ?, 'running')",
                (name, time.time(), file, json.dumps(spec), json.dumps(setup), baseline),
            )
            self.connection.executemany(
                "INSERT INTO arm (campaign, name, role, proposed, judged, tree, left_out, refused)"
                " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                [(name, a.name, a.role, a.proposed, a.judged, a.tree, json.dumps(a.left_out), a.refused) for a in arms],
            )
            self.connection.executemany(
                "INSERT INTO campaign_task (campaign, position, name, path, key, split) VALUES (?, ?, ?, ?, ?, ?)",
                [(name, number, t.name, t.path, t.key, t.split) for number, t in enumerate(tasks)],
            )
            self.connection.executemany(
                "INSERT INTO trial (id, campaign, arm, task, repeat, position, state)"
                " VALUES (?, ?, ?, ?, ?, ?, 'planned')",
                [(t.id, name, t.arm, t.task, t.repeat, t.position) for t in plan(name)],
            )
            self._event("campaign", name, f"started from {file}")
        return name

    def reopen(self, campaign: str) -> None:
        """Take over a campaign whose runner is gone: what was running is planned again."""
        with self._transaction():
            self.connection.execute(
                "UPDATE campaign SET state = 'running', error = NULL, finished = NULL WHERE id = ?", (campaign,)
            )
            self.connection.execute(
                "DELETE FROM running WHERE id IN (SELECT id FROM trial WHERE campaign = ?)", (campaign,)
            )
            query = "SELECT id FROM trial WHERE campaign = ? AND state = 'running'"
            for row in self.connection.execute(query, (campaign,)).fetchall():
                self._cut_off(row["id"], "the campaign's process was killed")
            self._event("campaign", campaign, "resumed")

    def set_aside(self, view: CampaignView, trial: TrialRow) -> int:
        """A person wants it to run again: its result is kept as an attempt. Returns the attempt's number."""
        with self._transaction():
            why = f"asked by {requests.me()}"
            number = rerun.set_aside(self.connection, view, trial, why)
            text = f"runs again ({why}); before it was invalid: {trial.detail}. The verdicts are computed again"
            self._event("trial", trial.id, text)
            return number

    def start_trial(self, trial: str, label: str, limit_seconds: float | None = None) -> None:
        """It runs now; `sia status` shows `label`. `limit_seconds`: its wall clock limit; None = none."""
        now = time.time()
        with self._transaction():
            self.connection.execute("UPDATE trial SET state = 'running', started = ? WHERE id = ?", (now, trial))
            self.connection.execute(
                "INSERT OR REPLACE INTO running (id, kind, supervisor, supervisor_started, label, state, started,"
                " updated, limit_seconds, campaign, arm, task, repeat)"
                " SELECT id, 'test', ?, ?, ?, 'starting', ?, ?, ?, campaign, arm, task, repeat FROM trial WHERE id = ?",
                (*self._owner, label, now, now, limit_seconds, trial),
            )

    def progress(self, rows: Mapping[str, Now]) -> None:
        """What running trials do now, by id. For all of them in one transaction."""
        with self._transaction():
            write(self.connection, rows)

    def requests(self, subjects: Mapping[str, float]) -> list[Request]:
        """What people ask about these (`requests.pending`)."""
        with self._lock, _explained():
            return requests.pending(self.connection, subjects)

    def answer(self, request: int, result: str, refused: bool) -> None:
        """What became of it."""
        with self._lock, _explained():
            requests.finish(self.connection, request, result, refused=refused)

    def finish_trial(self, record: TrialRecord, *, retry: bool = False) -> None:
        """Its result is final; with `retry` it is planned again as the next attempt."""
        with self._transaction():
            self.connection.execute("DELETE FROM running WHERE id = ?", (record.id,))
            if retry:
                self.connection.execute(
                    "UPDATE trial SET state = 'planned', attempt = attempt + 1, detail = ? WHERE id = ?",
                    (record.detail, record.id),
                )
                self._event("trial", record.id, f"invalid, will be tried again: {record.detail}")
                return
            self.connection.execute(
                "UPDATE trial SET state = 'done', outcome = ?, detail = ?, reward = ?, disqualified = ?,"
                " finished = ?, record = ? WHERE id = ?",
                (
                    record.outcome,
                    record.detail,
                    record.reward,
                    record.disqualified,
                    time.time(),
                    json.dumps(record.to_json()),
                    record.id,
                ),
            )
            if record.excluded:
                self._event("trial", record.id, f"{record.excluded}: it counts for neither arm")
            if record.disqualified:
                self._event("trial", record.id, f"{record.arm} is disqualified: {record.disqualified}")

    def cut_off(self, trial: str, why: str) -> None:
        """It was at work when the campaign ended."""
        with self._transaction():
            self._cut_off(trial, why)

    def _cut_off(self, trial: str, why: str) -> None:
        self.connection.execute("DELETE FROM running WHERE id = ?", (trial,))
        if rerun.cut_off(self.connection, trial, why):
            self._event("trial", trial, f"cut off: {why}; it runs again from its start")

    def plan_again(self, trials: Iterable[str]) -> None:
        """These have no result after all (our side failed): first attempt again."""
        with self._transaction():
            for trial in trials:
                self.connection.execute("DELETE FROM running WHERE id = ?", (trial,))
                self.connection.execute(
                    "UPDATE trial SET state = 'planned', started = NULL, finished = NULL, outcome = NULL,"
                    " detail = NULL, reward = NULL, record = NULL, attempt = 1 WHERE id = ?",
                    (trial,),
                )

    def interrupt(self, campaign: str, error: str | None = None) -> None:
        """It stopped before its end and can be resumed."""
        self._end(campaign, "interrupted", error)

    def fail(self, campaign: str, error: str) -> None:
        """It can't come to a conclusion, for good."""
        self._end(campaign, "failed", error)

    def conclude(self, campaign: str, verdicts: Iterable[Verdict]) -> None:
        """Store the verdicts and close the campaign."""
        with self._transaction():
            for verdict in verdicts:
                self.connection.execute(
                    "INSERT OR REPLACE INTO verdict (campaign, arm, verdict, numbers) VALUES (?, ?, ?, ?)",
                    (campaign, verdict.arm, verdict.verdict, json.dumps(asdict(verdict))),
                )
                self._event("verdict", f"{campaign}/{verdict.arm}", verdict.verdict)
            self.connection.execute(
                "UPDATE campaign SET state = 'done', finished = ?, error = NULL WHERE id = ?", (time.time(), campaign)
            )

    def view(self, campaign: str) -> CampaignView:
        """All that is stored about it."""
        with self._lock:
            return load(self.connection, campaign)

    def _end(self, campaign: str, state: str, error: str | None) -> None:
        with self._transaction():
            self.connection.execute("UPDATE campaign SET state = ?, error = ? WHERE id = ?", (state, error, campaign))
            self._event("campaign", campaign, f"{state}: {error}" if error else state)

    def _event(self, kind: str, subject: str, text: str) -> None:
        self.connection.execute(
            "INSERT INTO event (time, kind, subject, text) VALUES (?, ?, ?, ?)", (time.time(), kind, subject, text)
        )

    def _transaction(self) -> _Guarded:
        return _Guarded(self)


class _Guarded:
    """`database.transaction` under the store's lock, with SQLite's errors in words."""

    def __init__(self, store: CampaignStore) -> None:
        self._store = store
        self._inner = transaction(store.connection)

    def __enter__(self) -> None:
        self._store._lock.acquire()
        try:
            self._inner.__enter__()
        except BaseException as error:
            self._store._lock.release()
            raise _explain(error) from None

    def __exit__(self, kind: Any, value: BaseException | None, trace: Any) -> None:
        try:
            self._inner.__exit__(kind, value, trace)
        except BaseException as error:
            raise _explain(error) from None
        finally:
            self._store._lock.release()


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise _explain(error) from None


def _explain(error: BaseException) -> BaseException:
    if not isinstance(error, sqlite3.Error):
        return error
    return ConfigError(
        f"results can't be stored: {error}",
        where="sia.db",
        fix="free disk space (or make .sia writable), then `sia campaign resume`; finished trials are kept",
    )
