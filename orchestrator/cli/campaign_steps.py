"""`sia campaign stop|rerun`: stepping in with a campaign."""

from __future__ import annotations

import json as jsonlib
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.campaign import Id, Parallel, positive, show_result
from orchestrator.cli.options import DryRun, Json
from orchestrator.home import open_home


def stop(campaign: Id = "last", /, *, dry_run: DryRun = False, json: Json = False) -> int:
    """Stop a running campaign: trials at work are finished, no more start, and a resume goes on.

    Asked a second time, trials at work are killed too; they run again from their start after a resume, and
    the verdicts name them.
    """
    from orchestrator.cli.steps import step

    return step("stop_campaign", campaign, dry_run=dry_run, as_json=json)


def rerun(
    trial: Annotated[str, Parameter(help="The trial's id, or its unique beginning.")],
    /,
    *,
    parallel: Parallel = None,
    dry_run: DryRun = False,
    json: Json = False,
) -> int:
    """Run a trial again that gave no valid result (invalid, killed, spoken to), and conclude the campaign anew.

    The earlier result is kept as an attempt, and verdicts that rest on the trial say that it was run again. A trial
    with a valid result is refused: for more evidence judge again with more repeats or tasks.
    """
    from orchestrator.campaign import rerun as run_again
    from orchestrator.rerun import explain

    home = open_home()
    if dry_run:
        text = explain(home, trial)
        print(jsonlib.dumps({"dry_run": True, "text": text}) if json else text)
        return 0
    name = run_again(home, trial, parallel=positive(parallel))
    return show_result(home, name, json=json)
