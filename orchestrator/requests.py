"""What people ask of the process that owns an instance or a campaign: kill, pause, resume, message, stop.

Whoever asks writes a row (`ask`) and may `wait` for the result. The owner looks at the table about four times a second
(`pending`), marks what it takes, and stores the result (`finish`). What nobody took can't surprise a later owner: a row
that is older than the owner's own start of the subject is answered with a refusal.
"""

from __future__ import annotations

import os
import pwd
import sqlite3
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from orchestrator import database, processes
from orchestrator.errors import Failed, UsageError
from orchestrator.messages import check_message
from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    from orchestrator.home import Home

KINDS = ("kill", "pause", "resume", "message", "stop_campaign")
POLL = 0.1  # seconds between looks of somebody who waits
WAIT = 30.0  # seconds that a person waits for the owner, at the command line and in the dashboard
TOO_LATE = "it was not running when this was asked"


@dataclass(frozen=True)
class Request:
    """One row, as its owner sees it. `time` in Unix seconds."""

    id: int
    time: float
    kind: str
    subject: str
    text: str
    asked_by: str


@dataclass(frozen=True)
class Subject:
    """An instance that runs now: what a request can be about. `paused`: since when (Unix seconds), None = not."""

    id: str
    kind: str  # main | test
    label: str
    state: str
    campaign: str | None
    started: float
    paused: float | None


def ask(connection: sqlite3.Connection, kind: str, subject: str, text: str = "") -> int:
    """Store a request for the owner of `subject` (a full id, see `find_instance`, `campaign_view.resolve`).

    Returns its number, for `wait`. Raises UsageError for a message that is empty, too long or not text.
    """
    if kind == "message":
        check_message(text)
    cursor = connection.execute(
        "INSERT INTO request (time, kind, subject, text, asked_by) VALUES (?, ?, ?, ?, ?)",
        (time.time(), kind, subject, text, me()),
    )
    return int(cursor.lastrowid or 0)


def wait(connection: sqlite3.Connection, request: int, seconds: float) -> str | None:
    """The result in words, as soon as the owner has done it; None if it has not after `seconds`.

    What nobody has taken by then is withdrawn, so that it does not happen later. Raises Failed with the owner's reason
    when it refused.
    """
    deadline = time.monotonic() + seconds
    while True:
        row = connection.execute("SELECT refused, result FROM request WHERE id = ?", (request,)).fetchone()
        if row is not None and row["result"] is not None:
            if row["refused"]:
                raise Failed(row["result"], fix="`sia status` shows what runs")
            return str(row["result"])
        if time.monotonic() >= deadline:
            withdraw(connection, request)
            return None
        time.sleep(POLL)


def pending(connection: sqlite3.Connection, subjects: Mapping[str, float]) -> list[Request]:
    """Open requests about `subjects` (id → Unix time since when the caller owns it), oldest first, now marked as taken.

    Those from before that time are refused here. One cheap query where nothing is open.
    """
    rows = connection.execute(
        "SELECT id, time, kind, subject, text, asked_by FROM request WHERE taken IS NULL ORDER BY id"
    ).fetchall()
    taken = []
    for row in rows:
        if row["subject"] not in subjects:
            continue
        if row["time"] < subjects[row["subject"]]:
            finish(connection, row["id"], TOO_LATE, refused=True)
            continue
        marked = connection.execute(
            "UPDATE request SET taken = ? WHERE id = ? AND taken IS NULL", (time.time(), row["id"])
        )
        if marked.rowcount:
            taken.append(Request(**dict(row)))
    return taken


def finish(connection: sqlite3.Connection, request: int, result: str, *, refused: bool = False) -> None:
    """Store what became of it, in words."""
    connection.execute(
        "UPDATE request SET taken = coalesce(taken, ?), refused = ?, result = ? WHERE id = ? AND result IS NULL",
        (time.time(), int(refused), result, request),
    )


def explain(home: Home, kind: str, subject: str) -> str:
    """What will happen, in sentences, for `--dry-run` and dialogs. `subject`: an id or its unique beginning.

    `kind` is one of KINDS. Reads only. Raises UsageError when it can't be: nothing of that name runs, it is paused
    already, and so on.
    """
    with closing(_read(home)) as connection:
        if kind == "stop_campaign":
            return _explain_stop(home, connection, subject)
        return _EXPLAIN[kind](find_instance(connection, subject))


def find_instance(connection: sqlite3.Connection, name: str) -> Subject:
    """The running instance whose id is `name` or begins with it; `main` is the main instance.

    Raises UsageError if there is none, if its owner is gone, or if several match.
    """
    rows = connection.execute("SELECT * FROM running ORDER BY started").fetchall()
    found = [row for row in rows if row["id"] == name or (name == "main" and row["kind"] == "main")] or [
        row for row in rows if name and row["id"].startswith(name)
    ]
    alive = [row for row in found if processes.alive(row["supervisor"], row["supervisor_started"])]
    if len(alive) > 1:
        some = ", ".join(row["id"] for row in alive[:5])
        raise UsageError(f"{one_line(name)!r} could be {some}", fix="write more of the id")
    if not alive:
        raise _nothing(connection, name, rows, gone=bool(found))
    row = alive[0]
    return Subject(**{key: row[key] for key in Subject.__dataclass_fields__})


def _nothing(connection: sqlite3.Connection, name: str, rows: list[sqlite3.Row], *, gone: bool) -> UsageError:
    shown = one_line(name, 60)
    if gone:
        return UsageError(f"the process that ran {shown} is gone", fix="the next start clears it: see `sia status`")
    trial = connection.execute("SELECT id, state, outcome FROM trial WHERE id = ?", (name,)).fetchone()
    if trial is not None and trial["state"] == "done":
        fix = f"look at it: sia log show {name}"
        fix += f"; run it again: sia campaign rerun {name}" if trial["outcome"] == "invalid" else ""
        return UsageError(f"trial {name} has ended already ({trial['outcome']})", fix=fix)
    if trial is not None:
        return UsageError(f"trial {name} does not run yet", fix="`sia status` shows what runs")
    some = ", ".join(row["id"] for row in rows[:5])
    return UsageError(f"no instance {shown!r} runs", fix=f"these run: {some}" if some else "nothing runs now")


def _explain_kill(subject: Subject) -> str:
    if subject.kind == "main":
        return (
            f"The main instance ({_shown(subject)}) is killed at once, with everything it started; work since its last "
            "saved state is lost. It counts as a crash «killed by a person»: the supervisor starts it again after a "
            "pause, and a new generation that has yet to hold up loses this boot."
        )
    return (
        f"Trial {subject.id} ({_shown(subject)}) is killed at once, with everything it started. It ends as invalid, "
        "«killed by a person», is not tried again by itself and counts for neither arm: its pair is left out, and "
        "verdicts are inconclusive as long as it is. Its log is kept; "
        f"`sia campaign rerun {subject.id}` can run it again later."
    )


def _explain_pause(subject: Subject) -> str:
    if subject.paused is not None:
        raise UsageError(f"{subject.id} is paused already", fix=f"go on with it: sia resume {subject.id}")
    if subject.state == "verifying":
        raise UsageError(f"the instance of trial {subject.id} has ended, its result is being verified", fix="wait")
    return (
        f"Every process of {subject.id} ({_shown(subject)}) is stopped where it is. Its wall-clock limit does not run "
        f"meanwhile; what it asked of the engine is still answered. `sia resume {subject.id}` lets it go on."
    )


def _explain_resume(subject: Subject) -> str:
    if subject.paused is None:
        raise UsageError(f"{subject.id} is not paused", fix="there is nothing to do")
    since = time.strftime("%H:%M:%S", time.localtime(subject.paused))
    return f"{subject.id} ({_shown(subject)}), paused since {since}, goes on where it was stopped."


def _explain_message(subject: Subject) -> str:
    if subject.kind == "main":
        return "The message is stored in the message log, and the main instance reads it once, also after a restart."
    if subject.state == "verifying":
        raise UsageError(f"the instance of trial {subject.id} has ended, its result is being verified", fix="wait")
    return (
        f"The message goes to the standard input of trial {subject.id} ({_shown(subject)}), behind its instruction. "
        "No other trial gets it, so this one can't be compared any more: it runs to its end, but counts as invalid, «a "
        "person sent it a message», and for neither arm."
    )


_EXPLAIN = {
    "kill": _explain_kill,
    "pause": _explain_pause,
    "resume": _explain_resume,
    "message": _explain_message,
}


def _explain_stop(home: Home, connection: sqlite3.Connection, name: str) -> str:
    from orchestrator.campaign_view import lock_path, resolve
    from orchestrator.locks import holder

    campaign = resolve(connection, name)
    if holder(lock_path(home, campaign)) is None:
        state = connection.execute("SELECT state FROM campaign WHERE id = ?", (campaign,)).fetchone()["state"]
        over = state in ("done", "failed")
        fix = f"go on with it: sia campaign resume {campaign}"
        if over:
            fix = f"there is nothing to stop; what became of it: sia campaign show {campaign}"
        raise UsageError(f"nobody runs campaign {campaign}" + (f", it is {state}" if over else ""), fix=fix)
    count = "SELECT coalesce(sum(state = ?), 0) FROM trial WHERE campaign = ?"
    running, planned = (connection.execute(count, (s, campaign)).fetchone()[0] for s in ("running", "planned"))
    go_on = f"`sia campaign resume {campaign}` goes on later; nothing that was finished runs again."
    if was_asked_to_stop(connection, campaign):
        return (
            f"Campaign {campaign} is stopping already. Asked again, its {running} running trials are killed at once; "
            f"they do not count and run again from their start, and the verdicts name them. {go_on}"
        )
    return (
        f"Campaign {campaign} starts no more trials ({planned} are left); the {running} that run are finished, then it "
        f"ends as interrupted. Asked once more, it kills those too. {go_on}"
    )


def was_asked_to_stop(connection: sqlite3.Connection, campaign: str) -> bool:
    """Whether the process that runs the campaign now has taken a stop request (it is finishing its running trials)."""
    begun = "kind = 'campaign' AND subject = ? AND (text = 'resumed' OR text LIKE 'started from %')"
    row = connection.execute(
        "SELECT 1 FROM request WHERE kind = 'stop_campaign' AND subject = ? AND refused = 0 AND taken IS NOT NULL"
        f" AND time > coalesce((SELECT max(time) FROM event WHERE {begun}), 0)",
        (campaign, campaign),
    ).fetchone()
    return row is not None


def withdraw(connection: sqlite3.Connection, request: int) -> None:
    """It is not wanted any more. What its owner has taken already is not stopped by that."""
    connection.execute(
        "UPDATE request SET taken = ?, refused = 1, result = 'withdrawn: nobody took it in time'"
        " WHERE id = ? AND taken IS NULL",
        (time.time(), request),
    )


def _shown(subject: Subject) -> str:
    return one_line(subject.label, 80)


def me() -> str:
    """The user of this process, by name."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a uid without a name
        return f"uid {os.getuid()}"


def _read(home: Home) -> sqlite3.Connection:
    connection = database.look(home.database)
    if connection is None:
        fix = "sia campaign run FILE, or sia supervise"
        raise UsageError("nothing has run here yet", where=str(home.root), fix=fix)
    return connection
