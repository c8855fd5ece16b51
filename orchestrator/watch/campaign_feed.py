"""One campaign as its trials end. Finished records are parsed once."""

from __future__ import annotations

import json
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from orchestrator import database
from orchestrator.campaign_view import BASELINE, DIED, CampaignView, TrialRow, load, lock_path, resolve
from orchestrator.errors import ConfigError, UsageError
from orchestrator.home import Home
from orchestrator.watch import reading
from orchestrator.watch.values import Left, SoFar

_REST = 40  # a running verdict is computed again after this many times what it took: it may take a second
_OWNER_EVERY = 1.0  # seconds between looks at who runs it


@dataclass(frozen=True)
class CampaignNow:
    """A campaign as of now. `view.verdicts` are the final ones; `so_far` is there while there are none.

    `seconds` is how long trials have been at work, pauses between a stop and a resume left out.
    """

    serial: int  # grows when a trial changed
    view: CampaignView
    so_far: tuple[SoFar, ...]
    left: Left
    running: int
    seconds: float
    tokens: int
    cost: float | None  # None once one trial's is unknown
    current: bool = True  # its baseline is what main is now: only then can a candidate of it be promoted


class CampaignFeed:
    """Reads one campaign. Not for several threads at once."""

    def __init__(self, home: Home, campaign: str) -> None:
        """`campaign`: id, unique prefix, number or `last`. Raises UsageError if there is none."""
        self._home = home
        self._db = self._connect()
        try:
            self._id = resolve(self._db, campaign)
        except UsageError:
            self._db.close()
            raise
        self._version: int | None = None
        self._serial = 0
        self._trials: dict[str, TrialRow] = {}
        self._view: CampaignView | None = None
        self._signature: tuple[object, ...] = ()
        self._parallel = 0
        self._current = True
        self._at_work: tuple[int, float | None] = (0, 0.0)
        self._so_far: tuple[SoFar, ...] = ()
        self._judged: tuple[object, ...] = ()
        self._judge_at = float("-inf")
        self._owner_at, self._owned = float("-inf"), False

    @property
    def id(self) -> str:
        """The campaign's full id."""
        return self._id

    def poll(self, *, judge: bool = True) -> CampaignNow:
        """The present state. The running verdicts are computed again only when a trial has ended, and then not too
        often; without `judge` not at all (the first time takes a second). Raises ConfigError where the database can't
        be read."""
        try:
            self._read()
        except sqlite3.Error as error:
            fix = "restore the file, or use the SIA version that wrote it"
            raise ConfigError(f"the database can't be read: {error}", where=str(self._home.database), fix=fix) from None
        assert self._view is not None
        view = self._with_owner(self._view)
        running = sum(trial.state == "running" for trial in view.trials) if view.state == "running" else 0
        self._parallel = running or self._parallel
        if judge:
            self._judge(view)
        tokens, cost = self._at_work
        spent = [trial.record for trial in view.trials if trial.record]
        costs = [record.get("cost") for record in spent] + [cost]
        return CampaignNow(
            serial=self._serial,
            view=view,
            so_far=self._so_far if not view.verdicts else (),
            left=_left(view, self._parallel, time.time()),
            running=running,
            seconds=_covered(view.trials, time.time() if view.state == "running" else None),
            tokens=tokens + sum(record.get("tokens") or 0 for record in spent),
            cost=None if None in costs else sum(each for each in costs if each is not None),
            current=self._current,
        )

    def close(self) -> None:
        """Release the connection."""
        self._db.close()

    # -- reading ------------------------------------------------------------------------------------------------------

    def _connect(self) -> sqlite3.Connection:
        connection = database.look(self._home.database)
        if connection is None:
            fix = "sia campaign run FILE"
            raise UsageError("there is no campaign yet", where=str(self._home.root), fix=fix)
        return connection

    def _read(self) -> None:
        version = self._db.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return
        self._db.execute("BEGIN")
        try:
            self._read_changes()
        finally:
            self._db.execute("COMMIT")
        self._version = version

    def _read_changes(self) -> None:
        db, id = self._db, self._id
        query = (
            "SELECT count(*), sum(state = 'done'), sum(state = 'running'), max(finished), max(started), sum(attempt)"
            " FROM trial WHERE campaign = ?"
        )
        campaign = db.execute("SELECT state, error, finished FROM campaign WHERE id = ?", (id,)).fetchone()
        signature = (*campaign, *db.execute(query, (id,)).fetchone())
        if signature != self._signature or self._view is None:
            self._signature, self._serial = signature, self._serial + 1
            self._view = self._renewed(self._view)
        query = (
            "SELECT coalesce(sum(tokens), 0), coalesce(sum(cost), 0.0),"
            " coalesce(sum(cost IS NULL AND iterations > 0), 0)"  # before its first answer nothing was spent
            " FROM running WHERE campaign = ?"
        )
        tokens, cost, unknown = db.execute(query, (id,)).fetchone()
        self._at_work = (tokens, None if unknown else cost)
        query = "SELECT commit_id FROM generation WHERE number = (SELECT generation FROM ledger)"
        main = db.execute(query).fetchone()
        self._current = main is None or self._view.baseline == main[0]

    def _renewed(self, before: CampaignView | None) -> CampaignView:
        """The view, with the trials that have changed read again."""
        if before is None:
            view = load(self._db, self._id)
            self._trials = {trial.id: trial for trial in view.trials}
            return view
        query = "SELECT id, state, attempt, started, finished FROM trial WHERE campaign = ?"
        for row in self._db.execute(query, (self._id,)).fetchall():
            known = self._trials.get(row["id"])
            if known is None or tuple(row) != (known.id, known.state, known.attempt, known.started, known.finished):
                self._trials[row["id"]] = self._trial(row["id"])
        trials = tuple(sorted(self._trials.values(), key=lambda trial: trial.position))
        row = self._db.execute("SELECT * FROM campaign WHERE id = ?", (self._id,)).fetchone()
        query = "SELECT arm, numbers FROM verdict WHERE campaign = ?"
        found = {one["arm"]: json.loads(one["numbers"]) for one in self._db.execute(query, (self._id,))}
        verdicts = {arm.name: found[arm.name] for arm in before.arms if arm.name in found}
        about = {"state": row["state"], "error": row["error"], "finished": row["finished"]}
        return replace(before, **about, trials=trials, verdicts=verdicts)

    def _trial(self, id: str) -> TrialRow:
        row = dict(self._db.execute("SELECT * FROM trial WHERE id = ?", (id,)).fetchone())
        del row["campaign"]
        return TrialRow(**row | {"record": json.loads(row["record"]) if row["record"] else None})

    def _with_owner(self, view: CampaignView) -> CampaignView:
        if view.state != "running":
            return view
        if time.monotonic() - self._owner_at > _OWNER_EVERY:
            self._owner_at = time.monotonic()
            self._owned = reading.owner(lock_path(self._home, self._id)) is not None
        if self._owned:
            return view
        cut_off = (replace(trial, state="planned") if trial.state == "running" else trial for trial in view.trials)
        return replace(view, state=DIED, trials=tuple(cut_off))  # a resume runs them again from their start

    # -- judging ------------------------------------------------------------------------------------------------------

    def _judge(self, view: CampaignView) -> None:
        ended = (self._signature[4], self._signature[6], self._signature[8])  # how many, the last, attempts
        if view.verdicts or self._judged == ended or time.monotonic() < self._judge_at:
            return
        begun = time.monotonic()
        self._so_far, self._judged = so_far(view), ended
        self._judge_at = time.monotonic() + _REST * (time.monotonic() - begun)


def so_far(view: CampaignView) -> tuple[SoFar, ...]:
    """What the test says over the rounds (task, repeat) that all arms have finished; () where nothing can be said."""
    from orchestrator.campaign import observations  # heavy: numpy, scipy and the whole runner
    from orchestrator.verdict import Rules, judge

    out = {trial.arm for trial in view.trials if trial.disqualified}
    refused = {arm.name: arm.refused for arm in view.candidates if arm.refused is not None}
    if BASELINE in out:
        return ()
    arms = {arm.name for arm in view.arms} - out - refused.keys()
    ended: dict[tuple[str, int], set[str]] = defaultdict(set)
    for trial in view.trials:
        if trial.state == "done":
            ended[trial.task, trial.repeat].add(trial.arm)
    whole = {key for key, names in ended.items() if names >= arms}
    if not whole:
        return ()
    seen = [one for one in observations(view) if (one.task, one.repeat) in whole or one.arm in out]
    rules = view.spec["verdict"]
    found = judge(
        seen,
        [arm.name for arm in view.candidates if arm.refused is None],
        Rules(rules["alpha"], rules["margin"], rules["tolerance"]),
        failed_before=refused,
    )
    return tuple(SoFar(arm, len(whole), asdict(verdict)) for arm, verdict in found.items())


def _left(view: CampaignView, parallel: int, now: float) -> Left:
    """From what finished trials took, by task where one of it has ended. Disqualified arms run no more."""
    if view.state in ("done", "failed"):
        return Left(0.0, 0.0, 0.0)
    took: dict[str, list[float]] = defaultdict(list)
    done = [trial for trial in view.trials if trial.record and trial.started and trial.finished]
    for trial in done:
        took[trial.task].append((trial.finished or 0.0) - (trial.started or 0.0))
    out = {trial.arm for trial in view.trials if trial.disqualified}
    waiting = [trial for trial in view.trials if trial.state != "done" and trial.arm not in out]
    if not done or not waiting:
        return Left(None, None, None) if waiting else Left(0.0, 0.0, 0.0)
    usual = sum(map(sum, took.values())) / len(done)
    seconds, longest = 0.0, 0.0
    for trial in waiting:
        mine = took.get(trial.task)
        expected = sum(mine) / len(mine) if mine else usual
        if trial.state == "running" and trial.started:
            expected = max(0.0, expected - max(0.0, now - trial.started))
        seconds, longest = seconds + expected, max(longest, expected)
    each = [_mean([trial.record for trial in done if trial.record], name) for name in ("cost", "tokens")]
    cost, tokens = (None if one is None else one * len(waiting) for one in each)
    return Left(max(longest, seconds / parallel) if parallel else None, cost, tokens)


def _mean(records: Sequence[dict[str, Any]], name: str) -> float | None:
    """Of an amount of the records; None where one does not know it."""
    amounts = [record.get(name) for record in records]
    return None if None in amounts else sum(amount for amount in amounts if amount is not None) / len(amounts)


def _covered(trials: Iterable[TrialRow], now: float | None) -> float:
    """Seconds during which at least one trial ran; those that run now, up to `now` (None: none does)."""
    spans = sorted(
        (trial.started, end)
        for trial in trials
        if trial.started and (end := trial.finished if trial.state == "done" else now)
    )
    total, reached = 0.0, float("-inf")
    for start, end in spans:
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
