"""Stepping in: what the cursor is on, what would happen, and the doing of it. Each is a CLI command as well.

Requests to an owner are rows in a table; what takes longer or needs a sandbox (`promote`, `rerun`) is the command
itself, run beside the dashboard, so that both behave alike.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any

from orchestrator import database, requests
from orchestrator.errors import Failed, UsageError
from orchestrator.untrusted import one_line, printable
from orchestrator.watch import dialogs
from orchestrator.watch.dialogs import Outlook

if TYPE_CHECKING:
    from orchestrator.home import Home
    from orchestrator.watch.app import WatchApp
    from orchestrator.watch.view import Target

SAID = 4000  # bytes of what a command said that are shown
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
        requests.explain(home, kind, subject)  # it may have ended while the dialog was read
        with closing(database.connect(home.database)) as connection:
            number = requests.ask(connection, kind, subject, text if prompt else "")
            result = requests.wait(connection, number, requests.WAIT)
        if result is None:
            requests.explain(home, kind, subject)  # it may have ended just then
            raise Failed(LOST.format(seconds=requests.WAIT), where=title, fix="try again, or end that process")
        return result

    return Step(title, doing, lambda: Outlook(requests.explain(home, kind, subject), prompt), perform)


# -- commands


def _rerun(home: Home, target: Target) -> Step | str:
    if target.trial is None:
        return "no trial to run again here: put the cursor on an ended trial of a campaign (2)"
    trial = target.trial
    title = f"Run {one_line(trial, 40)} again"
    doing = f"{one_line(trial, 40)} is run again: it goes on when you leave; 1 shows it"
    arguments = ["campaign", "rerun", trial]

    def explain() -> Outlook:
        from orchestrator import rerun

        return Outlook(rerun.explain(home, trial))

    def perform(text: str) -> str:
        run_command(home, arguments)
        return f"it has ended, the campaign is concluded anew (sia log show {trial})"

    return Step(title, doing, explain, perform)


def _promote(home: Home, target: Target) -> Step | str:
    if target.candidate is None:
        return "no candidate to promote here: go to the campaign that judged it (2), cursor on one of its trials"
    name, campaign = target.candidate, target.campaign
    title = f"Promote {one_line(name, 40)}"
    insisting = False

    def explain() -> Outlook:
        from orchestrator import outlook  # what these import would make every start slower
        from orchestrator.config import load_settings

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
        from orchestrator import outlook

        with closing(database.connect(home.database, read_only=True)) as connection:
            return Outlook(outlook.rollback(home, connection, number))

    arguments = ["rollback", *([str(number)] if number is not None else [])]
    return Step(title, "rolling back…", explain, lambda _: run_command(home, arguments))


def run_command(home: Home, arguments: list[str]) -> str:
    """Run a `sia` command in the repository, beside the dashboard; returns what it said. Raises Failed, UsageError.

    Neither a key, nor a closed terminal, nor the end of the dashboard stops it halfway.
    """
    home.run.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=home.run) as said, tempfile.TemporaryFile(dir=home.run) as told:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "orchestrator", *arguments],
            cwd=home.checkout,
            env={**os.environ, "SIA_HOME": str(home.root), "NO_COLOR": "1", "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=said,  # files: a pipe that nobody reads any more would end it
            stderr=told,
            start_new_session=True,
        )
        code = process.wait()
        output, errors = _text(said), _text(told)
    if code == 0:
        return output or errors or "done"
    problem = errors.removeprefix("sia: ") or output or f"exit code {code}"
    raise (UsageError if code == 2 else Failed)(problem)


def _text(file: IO[bytes]) -> str:
    file.seek(0, os.SEEK_END)
    file.seek(max(0, file.tell() - SAID))
    return printable(file.read()).strip()


_STEPS: dict[str, Callable[[Home, Target], Step | str]] = {
    "kill": _kill,
    "pause": _pause,
    "message": _message,
    "stop": _stop,
    "rerun": _rerun,
    "promote": _promote,
    "rollback": _rollback,
}
