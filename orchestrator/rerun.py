"""Running a trial again that gave no valid result: which ones may be, what it means, and what verdicts say of it.

Only a trial without a valid result can be run again. To run one again because its result does not please, until it
does, is how a candidate gets better by chance alone; so that is refused. What is set aside stays: its record and its
files are kept as an attempt, the event log names who asked, and every verdict that rests on such a trial says so.
So it does of a trial that was cut off with its campaign: whoever stops that may have seen how the trial was going, and
an instance that is losing may have found a way to end it.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import database
from orchestrator.campaign_view import BASELINE, CampaignView, TrialRow, load, lock_path
from orchestrator.errors import UsageError
from orchestrator.locks import holder
from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    from orchestrator.home import Home
    from orchestrator.verdict import Verdict


CUT_OFF = "cut off"  # outcome of an attempt that ended with its campaign


@dataclass(frozen=True)
class Attempt:
    """An earlier run of a trial, set aside at `time` (Unix seconds). `number` counts from 1; `outcome` is that of its
    record, or `CUT_OFF`: it has none."""

    trial: str
    number: int
    time: float
    why: str
    outcome: str
    detail: str


def resolve_trial(connection: sqlite3.Connection, name: str) -> tuple[str, str]:
    """(campaign, trial) that `name` is, or is the unique beginning of. Raises UsageError."""
    rows = connection.execute("SELECT campaign, id FROM trial WHERE id = ?", (name,)).fetchall()
    if not rows and name:
        query = "SELECT campaign, id FROM trial WHERE substr(id, 1, ?) = ? ORDER BY id LIMIT 6"
        rows = connection.execute(query, (len(name), name)).fetchall()
    if len(rows) > 1:
        some = ", ".join(row["id"] for row in rows[:5])
        raise UsageError(f"{one_line(name)!r} could be {some}", fix="write more of the id")
    if not rows:
        raise UsageError(f"no trial {one_line(name)!r}", fix="`sia campaign show ID --trials` lists them")
    return rows[0]["campaign"], rows[0]["id"]


def check(view: CampaignView, trial: str) -> TrialRow:
    """The trial, if it may be run again. Raises UsageError that says why not, and what to do instead."""
    row = next(each for each in view.trials if each.id == trial)
    if view.state == "failed":
        raise UsageError(f"campaign {view.id} failed for good: {view.error}", fix="start a new campaign")
    if row.state != "done":
        fix = f"it runs with the campaign: sia campaign resume {view.id}"
        raise UsageError(f"trial {trial} has no result yet", fix=fix)
    if row.disqualified:
        what = f"trial {trial} shows tampering ({one_line(row.disqualified, 120)}): that is a result"
        raise UsageError(what, fix="repair the candidate, and judge it in a new campaign")
    if any(each.disqualified for each in view.trials if each.arm == row.arm):
        what = f"{one_line(row.arm, 60)} is disqualified: its trials are not run any more"
        raise UsageError(what, fix="repair the candidate, and judge it in a new campaign")
    if row.outcome != "invalid":
        reward = "" if row.reward is None else f", reward {row.reward:.3g}"
        what = (
            f"trial {trial} has a valid result ({row.outcome}{reward}); running it again until it pleases would make "
            "the verdict worthless"
        )
        raise UsageError(what, fix="for more evidence judge again with more repeats or tasks: sia campaign run FILE")
    return row


def explain(home: Home, name: str) -> str:
    """What running it again will do. Reads only. Raises UsageError where it can't be."""
    if not home.database.exists():
        raise UsageError("there is no campaign yet", where=str(home.root), fix="sia campaign run FILE")
    with closing(database.connect(home.database)) as connection:
        campaign, trial = resolve_trial(connection, name)
        view = load(connection, campaign)
    if (process := holder(lock_path(home, campaign))) is not None:
        fix = f"wait for its end, or stop it: sia campaign stop {campaign}"
        raise UsageError(f"campaign {campaign} is being run (process {process})", fix=fix)
    row = check(view, trial)
    others = sum(each.state != "done" for each in view.trials)
    also = f" So do the {others} trials that are not done yet." if others else ""
    withdrawn = " The present verdicts are withdrawn until then." if view.verdicts else ""
    return (
        f"Trial {trial} ({one_line(row.task, 60)} × {one_line(row.arm, 60)} × {row.repeat}) ended as invalid: "
        f"{one_line(row.detail or '', 200)}. It runs again from an empty overlay.{also} Its present record and files "
        f"are kept as attempt {len(attempts_of(view, trial)) + 1}. Then the verdicts of campaign {campaign} are "
        f"computed again, and say that a trial of theirs was run again.{withdrawn}"
    )


def attempts_of(view: CampaignView, trial: str) -> list[Attempt]:
    """Earlier results of a trial, oldest first."""
    return [attempt for attempt in attempts(view) if attempt.trial == trial]


def attempts(view: CampaignView) -> list[Attempt]:
    """All results of a campaign that were set aside, oldest first."""
    return [Attempt(**values) for values in view.set_aside]


def set_aside(connection: sqlite3.Connection, view: CampaignView, trial: TrialRow, why: str) -> int:
    """Move the result into the table of attempts, plan the trial again, withdraw the verdicts; in the caller's
    transaction. From then on a resume can do the rest, should this process die. Returns the attempt's number."""
    number = len(attempts_of(view, trial.id)) + 1
    connection.execute(
        "INSERT INTO trial_attempt (trial, attempt, time, why, outcome, detail, started, finished, record)"
        " SELECT id, ?, ?, ?, outcome, detail, started, finished, record FROM trial WHERE id = ?",
        (number, time.time(), why, trial.id),
    )
    connection.execute(
        "UPDATE trial SET state = 'planned', attempt = 1, outcome = NULL, detail = NULL, reward = NULL, started = NULL,"
        " finished = NULL, record = NULL WHERE id = ?",
        (trial.id,),
    )
    connection.execute("DELETE FROM verdict WHERE campaign = ?", (view.id,))
    connection.execute("UPDATE campaign SET state = 'interrupted', finished = NULL WHERE id = ?", (view.id,))
    return number


def cut_off(connection: sqlite3.Connection, trial: str, why: str) -> bool:
    """A trial at work ended with its campaign: it is planned again, and that it had begun is kept as an attempt; in the
    caller's transaction. Returns whether it had begun."""
    begun = connection.execute(
        "INSERT INTO trial_attempt (trial, attempt, time, why, outcome, detail, started)"
        " SELECT id, 1 + (SELECT count(*) FROM trial_attempt WHERE trial = trial.id), ?, ?, ?, ?, started FROM trial"
        " WHERE id = ? AND state = 'running'",
        (time.time(), why, CUT_OFF, why, trial),
    ).rowcount
    connection.execute("UPDATE trial SET state = 'planned', started = NULL WHERE id = ?", (trial,))
    return bool(begun)


def keep_files(trials: Path, view: CampaignView, trial: str) -> None:
    """What was kept of it moves aside, to `<trial>.<attempt>`. Called before `set_aside`; may be called again."""
    place = trials / trial
    if place.exists():
        place.rename(place.with_name(f"{trial}.{len(attempts_of(view, trial)) + 1}"))


def with_notes(verdicts: dict[str, Verdict], view: CampaignView) -> dict[str, Verdict]:
    """The verdicts, each with reasons that name trials of its pairs that were run again."""
    arms = {trial.id: trial.arm for trial in view.trials}
    of_arm = {name: [a for a in attempts(view) if arms[a.trial] in (name, BASELINE)] for name in verdicts}
    return {name: _noted(verdict, of_arm[name]) for name, verdict in verdicts.items()}


def _noted(verdict: Verdict, again: Sequence[Attempt]) -> Verdict:
    asked, cut = [a for a in again if a.outcome != CUT_OFF], [a for a in again if a.outcome == CUT_OFF]
    notes = []
    if asked:
        notes.append(f"run again on a person's request: {_some(asked)} (ended before as: {_causes(asked)})")
    if cut:
        notes.append(f"run again from their start: {_some(cut)} (cut off: {_causes(cut)})")
    return replace(verdict, reasons=(*verdict.reasons, *notes))


def _some(again: Sequence[Attempt]) -> str:
    trials = sorted({attempt.trial for attempt in again})
    return ", ".join(trials[:5]) + (" …" if len(trials) > 5 else "")


def _causes(again: Sequence[Attempt]) -> str:
    return one_line(", ".join(sorted({attempt.detail for attempt in again})), 200)
