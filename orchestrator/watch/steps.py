"""Stepping in: what the cursor is on, what would happen, and the doing of it. Each is a CLI command as well.

Requests to an owner are rows in a table; what takes longer or needs a sandbox (`promote`, `rerun`) is the command
itself, run beside the dashboard, so that both behave alike.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator import database, outlook, requests
from orchestrator.config import load_settings
from orchestrator.errors import Failed, UsageError
from orchestrator.untrusted import one_line, printable
from orchestrator.watch import dialogs
from orchestrator.watch.dialogs import Outlook

if TYPE_CHECKING:
    from orchestrator.home import Home
    from orchestrator.watch.app import WatchApp
    from orchestrator.watch.view import Target

WAIT = 15.0  # seconds for an owner to take a request
COMMAND_WAIT = 900.0  # seconds for a command that runs sandboxes
LOST = "nobody took the request within {seconds:.0f} s: the process that owns it hangs or is gone (`sia status`)"


@dataclass(frozen=True)
class Step:
    """A step about one thing. `doing` is said while it is at work; `perform` gets what was typed."""

    title: str
    doing: str
    explain: Callable[[], Outlook]
    perform: Callable[[str], str]


def begin(app: WatchApp, action: str, target: Target) -> None:
    """Ask in a dialog, then do it. In a read-only dashboard, or with nothing to do it to, say why not."""
    if app.read_only:
        app.say(f"this dashboard is read-only: it was started with --read-only, so nothing is asked to {_verb(action)}")
        return
    step = _STEPS[action](app.home, target)
    if isinstance(step, str):
        app.say(step)
        return

    def answered(text: str | None) -> None:
        if text is None:
            app.say(f"{step.title}: not done")
            return
        app.say(step.doing)
        app.in_thread(lambda: step.perform(text), lambda result, error: _ended(app, step, result, error))

    app.push_screen(dialogs.Confirm(step.title, step.explain), answered)


def _ended(app: WatchApp, step: Step, result: Any, error: BaseException | None) -> None:
    from orchestrator.watch.app import message_of

    app.overview.hurry("overview")
    if error is None:
        app.say(f"{step.title}: {one_line(str(result), 400)}")
        return
    app.say(f"{step.title}: it did not work", bad=True)
    app.push_screen(dialogs.Say(step.title, message_of(error)))


def _verb(action: str) -> str:
    return {"message": "read a message", "stop": "stop", "rollback": "roll back"}.get(action, action)


# -- requests to an owner


def _kill(home: Home, target: Target) -> Step | str:
    if target.instance is None:
        return "nothing to kill here: put the cursor on a running instance (1)"
    id = target.instance.id
    return _request(home, "kill", id, f"Kill {one_line(id, 40)}", f"killing {one_line(id, 40)}…")


def _pause(home: Home, target: Target) -> Step | str:
    if target.instance is None:
        return "nothing to pause here: put the cursor on a running instance (1)"
    id, resumes = target.instance.id, target.instance.paused_since is not None
    kind, word, doing = ("resume", "Resume", "resuming") if resumes else ("pause", "Pause", "pausing")
    return _request(home, kind, id, f"{word} {one_line(id, 40)}", f"{doing} {one_line(id, 40)}…")


def _message(home: Home, target: Target) -> Step | str:
    if target.instance is None:
        return "nobody to write to here: put the cursor on a running instance (1)"
    id = target.instance.id
    title = f"Message to {one_line(id, 40)}"
    return _request(home, "message", id, title, "sending…", prompt="the message, on one line")


def _stop(home: Home, target: Target) -> Step | str:
    if target.campaign is None:
        return "no campaign to stop here: put the cursor on one of its trials, or go to the campaign (2)"
    id = target.campaign
    return _request(home, "stop_campaign", id, f"Stop campaign {one_line(id, 40)}", "asking the campaign to stop…")


def _request(home: Home, kind: str, subject: str, title: str, doing: str, *, prompt: str = "") -> Step:
    def perform(text: str) -> str:
        with closing(database.connect(home.database)) as connection:
            number = requests.ask(connection, kind, subject, text if prompt else "")
            result = requests.wait(connection, number, WAIT)
        if result is None:
            raise Failed(LOST.format(seconds=WAIT), where=title, fix="try again, or end that process")
        return result

    return Step(title, doing, lambda: Outlook(requests.explain(home, kind, subject), prompt), perform)


# -- commands


def _rerun(home: Home, target: Target) -> Step | str:
    if target.trial is None:
        return "no trial to run again here: put the cursor on an ended trial of a campaign (2)"
    arguments = ["campaign", "rerun", target.trial]
    title = f"Run {one_line(target.trial, 40)} again"
    return _command(home, title, "running it again…", [*arguments, "--dry-run"], arguments)


def _promote(home: Home, target: Target) -> Step | str:
    if target.candidate is None:
        return "no candidate to promote here: go to the campaign that judged it (2), cursor on one of its trials"
    name, campaign = target.candidate, target.campaign
    title = f"Promote {one_line(name, 40)}"
    insisting = False

    def explain() -> Outlook:
        nonlocal insisting
        settings = load_settings(home.checkout)
        with closing(database.connect(home.database, read_only=True)) as connection:
            insisting = outlook.needs_reason(connection, name, campaign)
            accept = "what you write below" if insisting else None
            text = outlook.promotion(home, settings, connection, name, campaign, accept=accept)
        return Outlook(text, "the reason why it shall become main all the same" if insisting else "")

    def perform(text: str) -> str:
        arguments = ["promote", name, *(["--campaign", campaign] if campaign else [])]
        return run_command(home, [*arguments, "--accept", text] if insisting else arguments)

    return Step(title, f"promoting {one_line(name, 40)}: it is verified first…", explain, perform)


def _rollback(home: Home, target: Target) -> Step:
    number = target.generation
    title = "Roll back" if number is None else f"Roll back to generation {number}"

    def explain() -> Outlook:
        with closing(database.connect(home.database, read_only=True)) as connection:
            return Outlook(outlook.rollback(home, connection, number))

    arguments = ["rollback", *([str(number)] if number is not None else [])]
    return Step(title, "rolling back…", explain, lambda _: run_command(home, arguments))


def _command(home: Home, title: str, doing: str, dry: list[str], arguments: list[str]) -> Step:
    return Step(title, doing, lambda: Outlook(run_command(home, dry)), lambda _: run_command(home, arguments))


def run_command(home: Home, arguments: list[str]) -> str:
    """Run a `sia` command in the repository; returns what it said. Raises Failed with its message."""
    environment = {**os.environ, "SIA_HOME": str(home.root), "NO_COLOR": "1", "COLUMNS": "200"}
    done = subprocess.run(
        [sys.executable, "-m", "orchestrator", *arguments],
        cwd=home.checkout,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=COMMAND_WAIT,
        check=False,
        start_new_session=True,  # a key or a closed terminal must not interrupt it halfway
    )
    said = printable(done.stdout).strip()
    if done.returncode == 0:
        return said or printable(done.stderr).strip() or "done"
    problem = printable(done.stderr).strip().removeprefix("sia: ") or said or f"exit code {done.returncode}"
    kind = UsageError if done.returncode == 2 else Failed
    raise kind(problem)


_STEPS: dict[str, Callable[[Home, Target], Step | str]] = {
    "kill": _kill,
    "pause": _pause,
    "message": _message,
    "stop": _stop,
    "rerun": _rerun,
    "promote": _promote,
    "rollback": _rollback,
}
