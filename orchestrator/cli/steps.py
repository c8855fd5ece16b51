"""`sia kill|pause|resume` and the requests behind `sia send --to` and `sia campaign stop`: stepping in."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from contextlib import closing
from typing import Annotated

from cyclopts import Parameter

from orchestrator import database, requests
from orchestrator.cli.options import DryRun, Json
from orchestrator.errors import Failed
from orchestrator.home import Home, open_home
from orchestrator.untrusted import one_line

Instance = Annotated[str, Parameter(help="Its id or the unique beginning of it (`sia status`), or `main`.")]


def kill(instance: Instance, /, *, dry_run: DryRun = False, as_json: Json = False) -> int:
    """Kill a running instance, with everything it started.

    A trial ends as invalid, «killed by a person»: it counts for neither arm and is not tried again by itself (`sia
    campaign rerun`). The main instance is started again by its supervisor, as after any crash.
    """
    return step("kill", instance, dry_run=dry_run, as_json=as_json)


def pause(instance: Instance, /, *, dry_run: DryRun = False, as_json: Json = False) -> int:
    """Stop every process of a running instance where it is. Its wall-clock limit does not run meanwhile."""
    return step("pause", instance, dry_run=dry_run, as_json=as_json)


def resume(instance: Instance, /, *, dry_run: DryRun = False, as_json: Json = False) -> int:
    """Let a paused instance go on."""
    return step("resume", instance, dry_run=dry_run, as_json=as_json)


def step(kind: str, name: str, text: str = "", *, dry_run: bool, as_json: bool) -> int:
    """Ask the owner of an instance or a campaign for something and wait for the result."""
    home = open_home()
    told = requests.explain(home, kind, name)
    if dry_run:
        return _say({"dry_run": True, "kind": kind, "text": told}, told, as_json=as_json)
    subject, result = _done(home, kind, name, text)
    values = {"kind": kind, "subject": subject, "result": result}
    return _say(values, f"{subject}: {one_line(result, 300)}", as_json=as_json)


def _done(home: Home, kind: str, name: str, text: str) -> tuple[str, str]:
    from orchestrator.campaign_view import resolve

    with closing(database.connect(home.database)) as connection:
        if kind == "stop_campaign":
            subject = resolve(connection, name)
        else:
            subject = requests.find_instance(connection, name).id
        number = requests.ask(connection, kind, subject, text)
        try:
            result = requests.wait(connection, number, requests.WAIT)
        except KeyboardInterrupt:
            requests.withdraw(connection, number)
            raise
    if result is None:
        what = f"nobody did it within {requests.WAIT:g} s: the process that runs {subject} hangs, or has just ended"
        raise Failed(what, where=subject, fix="see `sia status`, and try again")
    return subject, result


def _say(values: Mapping[str, object], text: str, *, as_json: bool) -> int:
    if as_json:
        print(json.dumps(values))
    elif values.get("dry_run"):
        print(text)
    else:
        print(text, file=sys.stderr)
    return 0
