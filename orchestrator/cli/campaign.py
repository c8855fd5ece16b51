"""`sia campaign run|list|show|resume|report`. Data on stdout, prose and progress on stderr."""

from __future__ import annotations

import json as jsonlib
import os
import sqlite3
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from orchestrator import database
from orchestrator.campaign_view import RESUMABLE, CampaignView, load, resolve, state_of
from orchestrator.cli.options import Json
from orchestrator.errors import UsageError
from orchestrator.home import Home, locate, open_home

if TYPE_CHECKING:
    from rich.console import Console

OFF_TERMINAL = 160  # columns of a table in a file or a pipe: nothing is folded that a search should find
Parallel = Annotated[int | None, Parameter(help="Trials at the same time (default: the file's, else the cores).")]
Id = Annotated[str, Parameter(help="The campaign's id, its unique beginning, its number, or `last`.")]


def run(file: Path, /, *, parallel: Parallel = None, json: Json = False) -> int:
    """Judge the candidates of a campaign file against the current generation.

    The plan says first what could be seen at this size. Ctrl-C ends the trials at work (exit code 130); they run again
    at the resume: `sia campaign resume`. Exit code 0 once there are verdicts, whatever they are.

    Parameters
    ----------
    file
        The campaign file (docs/campaign-file.md).
    """
    from orchestrator.campaign import run_campaign

    home = open_home()
    name = run_campaign(home, file, parallel=positive(parallel))
    return show_result(home, name, json=json)


def resume(campaign: Id = "last", /, *, parallel: Parallel = None, json: Json = False) -> int:
    """Finish a campaign that was interrupted or killed. Finished trials are never run again."""
    from orchestrator.campaign import resume as finish

    home = open_home()
    name = finish(home, campaign, parallel=positive(parallel))
    return _print(_load(home, name), json=json)


def show(
    campaign: Id = "last",
    /,
    *,
    trials: Annotated[bool, Parameter(negative="", help="Also list every trial.")] = False,
    json: Json = False,
) -> int:
    """Show a campaign's verdicts as they were concluded; nothing is computed again."""
    home = locate()
    return _print(_load(home, campaign), json=json, trials=trials)


def list_campaigns(*, json: Json = False) -> int:
    """List campaigns, newest first."""
    home = locate()
    rows = _summaries(home)
    if json:
        print(jsonlib.dumps(rows, indent=2))
    elif rows:
        from orchestrator.panels import campaign_table

        _console().print(campaign_table(rows))
    else:
        print("There is no campaign yet: sia campaign run FILE", file=sys.stderr)
    return 0


def report(campaign: Id = "last", /, *, json: Json = False) -> int:
    """Write the report (HTML with figures, and Markdown) below `.sia/campaigns/` and print where it is."""
    from orchestrator.report import write

    home = open_home()
    written = write(home, _load(home, campaign))
    if json:
        print(jsonlib.dumps({"html": str(written.html), "markdown": str(written.markdown)}))
    else:
        print(written.html)
        print(written.markdown)
    return 0


def show_result(home: Home, campaign: str, *, json: bool) -> int:
    """Print a campaign as it is now."""
    return _print(_load(home, campaign), json=json)


def _print(view: CampaignView, *, json: bool, trials: bool = False) -> int:
    if json:
        print(jsonlib.dumps(view.to_json(), indent=2))
        return 0
    from orchestrator import panels
    from orchestrator.untrusted import one_line

    console = _console()
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(view.created))
    console.print(
        f"campaign {view.id} · {view.state} · started {started} · {view.done}/{len(view.trials)} trials · "
        f"baseline {view.baseline[:12]}",
        markup=False,
        soft_wrap=True,
    )
    if view.error:
        console.print(one_line(view.error, 400), markup=False, soft_wrap=True)
    if view.verdicts:
        console.print(panels.verdict_table(view.verdicts))
        if any(verdict["guardrails"] for verdict in view.verdicts.values()):
            console.print(panels.guardrail_table(view.verdicts))
    console.print(panels.matrix(view))
    if trials:
        console.print(panels.trial_table(view))
    for arm in view.candidates:
        if arm.left_out:
            left = ", ".join(one_line(path, 80) for path in arm.left_out)
            text = f"{one_line(arm.name, 60)}: not judged, since outside the agent paths: {left}"
            console.print(text, markup=False, soft_wrap=True)
    for line in view.unasked:
        console.print(one_line(line, 400), markup=False, soft_wrap=True)
    _hint(view)
    return 0


def _hint(view: CampaignView) -> None:
    better = [arm for arm, verdict in view.verdicts.items() if verdict["verdict"] == "better"]
    if view.state in RESUMABLE:
        print(f"go on with: sia campaign resume {view.id}", file=sys.stderr)
    elif len(better) == 1:
        print(f"next: sia promote {better[0]} --campaign {view.id}", file=sys.stderr)
    elif view.verdicts:
        print(f"details: sia campaign show {view.id} --trials · sia campaign report {view.id}", file=sys.stderr)


def _load(home: Home, campaign: str) -> CampaignView:
    from dataclasses import replace

    with closing(_read(home)) as connection:
        view = load(connection, resolve(connection, campaign))
    return replace(view, state=state_of(home, view.id, view.state))


def _read(home: Home) -> sqlite3.Connection:
    """The database for looking; a missing one is a message, an older one is migrated first."""
    connection = database.look(home.database)
    if connection is None:
        raise UsageError("there is no campaign yet", where=str(home.root), fix="sia campaign run FILE")
    return connection


def _summaries(home: Home) -> list[dict[str, Any]]:
    if not home.database.exists():
        return []
    with closing(_read(home)) as connection:
        rows = connection.execute(
            "SELECT c.id, c.created, c.finished, c.file, c.baseline, c.state, c.error, count(t.id) AS trials,"
            " coalesce(sum(t.state = 'done'), 0) AS done FROM campaign c LEFT JOIN trial t ON t.campaign = c.id"
            " GROUP BY c.id ORDER BY c.created DESC, c.id DESC"
        ).fetchall()
        verdicts = connection.execute("SELECT campaign, arm, verdict FROM verdict ORDER BY rowid").fetchall()
    return [
        {
            **dict(row),
            "state": state_of(home, row["id"], row["state"]),
            "verdicts": {v["arm"]: v["verdict"] for v in verdicts if v["campaign"] == row["id"]},
        }
        for row in rows
    ]


def positive(parallel: int | None) -> int | None:
    """`--parallel`, checked."""
    if parallel is not None and parallel < 1:
        raise UsageError(f"--parallel {parallel}: at least 1", fix="leave it out to use all cores")
    return parallel


def _console() -> Console:
    from rich.console import Console

    wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else OFF_TERMINAL
    return Console(file=sys.stdout, highlight=False, width=wide)
