"""`sia status`: one look at what runs. Starts fast: the standard library and SQLite, nothing else; but on a terminal
it shows the panels of `sia watch`."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import asdict
from typing import Any

from orchestrator.campaign_view import state_of
from orchestrator.cli.options import Json
from orchestrator.cli.promote_lines import SAYS, promotion_line
from orchestrator.database import look as look_into
from orchestrator.errors import ConfigError
from orchestrator.home import Home, locate
from orchestrator.processes import alive
from orchestrator.requests import was_asked_to_stop
from orchestrator.supervisor_lock import holder
from orchestrator.untrusted import one_line
from sandbox.orphans import look as look_for_orphans

SUBJECTS = ("campaign", "trial", "verdict")  # kinds of events whose text leaves out what they are about


def status(*, as_json: Json = False) -> int:
    """Show the main instance, running campaigns, open promotions, and what a dead process left behind.

    On a terminal it is the overview of `sia watch`, once; elsewhere one fact a line.
    """
    home = locate()
    found = look(home)
    if as_json:
        print(json.dumps(found, indent=2))
    elif sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb":
        from orchestrator.cli.watch import show  # imports rich

        show(home, "instances", "")
    else:
        print("\n".join(lines(found)))
    return 0


def look(home: Home) -> dict[str, Any]:
    """Everything that is shown, as JSON-able values. Reads only. Unknown amounts are None."""
    held = holder(home)
    values: dict[str, Any] = {
        "home": str(home.root),
        "supervisor": {"pid": held.pid, "since": held.since, "command": held.command} if held else None,
        "main": None,
        "ledger": None,
        "promotions": [],
        "campaigns": [],
        "tests": [],
        "orphans": [],
        "events": [],
    }
    database = look_into(home.database)
    if database is not None:
        try:
            with closing(database) as connection:
                _ledger(connection, values)
                _running(connection, values)
                _campaigns(home, connection, values)
        except sqlite3.Error as error:
            fix = "restore the file, or use the SIA version that wrote it"
            raise ConfigError(f"the database can't be read: {error}", where=str(home.database), fix=fix) from None
    values["left"] = [asdict(orphan) for orphan in look_for_orphans(home.root)]
    return values


def _ledger(connection: sqlite3.Connection, values: dict[str, Any]) -> None:
    row = connection.execute(
        "SELECT ledger.state, ledger.generation, ledger.last_good, ledger.probation, ledger.crashes, ledger.cause,"
        " generation.commit_id, generation.candidate FROM ledger"
        " JOIN generation ON generation.number = ledger.generation"
    ).fetchone()
    values["ledger"] = dict(row) if row else None
    query = (
        "SELECT id, kind, candidate, old, new, new_commit, tries, launches, given_back, outcome, cause, created,"
        " finished FROM promotion WHERE outcome IS NULL OR id > (SELECT max(id) - 3 FROM promotion) ORDER BY id"
    )
    values["promotions"] = [dict(row) for row in connection.execute(query)]
    rows = connection.execute("SELECT time, kind, subject, text FROM event ORDER BY id DESC LIMIT 5").fetchall()
    values["events"] = [dict(row) for row in reversed(rows)]


def _running(connection: sqlite3.Connection, values: dict[str, Any]) -> None:
    for row in connection.execute("SELECT * FROM running ORDER BY started"):
        instance = dict(row)
        if not alive(row["supervisor"], row["supervisor_started"]):
            values["orphans"].append(instance)
        elif row["kind"] == "main":
            launch = connection.execute("SELECT generation, valid FROM launch WHERE nonce = ?", (row["id"],)).fetchone()
            instance |= dict(launch) if launch else {}
            instance["iterations"] = max(instance["iterations"], instance.get("valid", 0))  # written more often
            values["main"] = instance
        else:
            values["tests"].append(instance)


def _campaigns(home: Home, connection: sqlite3.Connection, values: dict[str, Any]) -> None:
    query = (
        "SELECT campaign.id, campaign.state, campaign.file, count(trial.id) AS trials,"
        " coalesce(sum(trial.state = 'done'), 0) AS done"
        " FROM campaign LEFT JOIN trial ON trial.campaign = campaign.id"
        " WHERE campaign.state IN ('running', 'interrupted') GROUP BY campaign.id ORDER BY campaign.created"
    )
    for row in connection.execute(query):
        state = state_of(home, row["id"], row["state"])
        stopping = state == "running" and was_asked_to_stop(connection, row["id"])
        values["campaigns"].append(dict(row) | {"state": state, "stopping": stopping})


def lines(values: dict[str, Any]) -> list[str]:
    """The same for people, one fact a line. Names that others chose are stripped of terminal sequences."""
    held, ledger, main = values["supervisor"], values["ledger"], values["main"]
    who = f"{held['command']}, process {held['pid']}, up {_span(held['since'])}" if held else "none runs"
    shown = [("supervisor", who), *(_ledger_lines(ledger) if ledger else [])]
    if main:
        counts = f"{_iterations(main['iterations'])} ({main.get('valid', 0)} valid), {main['tokens']} tokens"
        state = main["state"] + _paused(main)
        text = f"{main['label']}, {state}, up {_span(main['started'])}: {counts}, cost {_cost(main['cost'])}"
        shown.append(("main", text))
    else:
        shown.append(("main", "not running"))
    shown += [("", promotion_line(promotion)) for promotion in values["promotions"]]
    for campaign in values["campaigns"]:
        done = f"{campaign['done']}/{campaign['trials']} trials"
        state = "stopping" if campaign["stopping"] else campaign["state"]
        shown.append(("campaign", f"{campaign['id']}, {state}: {done}, {campaign['file']}"))
    for test in values["tests"]:
        state = f"{test['state']}{_paused(test)}, {_iterations(test['iterations'])}"
        shown.append(("test", f"{test['id']}: {test['label']}, {state}"))
    for orphan in values["orphans"]:
        gone = f"its supervisor (process {orphan['supervisor']}) is gone; the next start clears it"
        shown.append(("orphan", f"{orphan['label']}: {gone}"))
    left = values["left"]
    shown += [("orphan", f"{each['kind']} {each['what']}; the next start clears it") for each in left]
    if not left and not values["orphans"]:
        shown.append(("orphans", "none: no process, mount, group, socket or layer is left of a killed supervisor"))
    for event in values["events"]:
        clock = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["time"]))
        named = event["kind"] in SUBJECTS and event["subject"] not in event["text"]
        subject = f"{event['subject']}: " if named else ""
        shown.append(("event", f"{clock} {event['kind']}: {subject}{event['text']}"))
    return [f"{label:<12}{one_line(text, 300)}" for label, text in shown]


def _iterations(number: int) -> str:
    return f"{number} iteration{'' if number == 1 else 's'}"


def _ledger_lines(ledger: dict[str, Any]) -> list[tuple[str, str]]:
    head = f"{ledger['generation']} ({ledger['candidate']}), {ledger['commit_id'][:12]}, {ledger['state']}"
    shown = [("generation", head + (", on probation after a rollback" if ledger["probation"] else ""))]
    if SAYS[ledger["state"]]:
        shown.append(("", SAYS[ledger["state"]]))
    if ledger["cause"]:
        shown.append(("", ledger["cause"]))
    if ledger["crashes"]:
        shown.append(("", f"{ledger['crashes']} crashes in a row"))
    return shown


def _paused(instance: dict[str, Any]) -> str:
    return f", PAUSED for {_span(instance['paused'])}" if instance["paused"] is not None else ""


def _cost(cost: float | None) -> str:
    return "unknown" if cost is None else f"${cost:.4f}"


def _span(since: float) -> str:
    seconds = max(0, int(time.time() - since))
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h"
