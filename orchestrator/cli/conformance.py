"""`sia conformance`."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Annotated

from cyclopts import Parameter

from orchestrator.cli.options import Json


def conformance(
    *command: Annotated[str, Parameter(allow_leading_hyphen=True, required=False)],
    candidate: str = "HEAD",
    only: tuple[str, ...] = (),
    json_: Json = False,
) -> int:
    """Check that a command keeps the contract of instances. Exit code 1 if a check fails.

    It runs in a sandbox with the agent paths of a commit; what is not committed is not seen.

    Parameters
    ----------
    command
        The command that starts an instance, after `--` (default: `[agent] command` of sia.toml).
    candidate
        The branch, commit or proposal whose agent paths are used.
    only
        Numbers of the checks to show (default: all).
    """
    from orchestrator.candidates import build
    from orchestrator.config import load_settings
    from orchestrator.conformance import TITLES, check
    from orchestrator.errors import UsageError
    from orchestrator.home import open_home
    from orchestrator.repository import Repository
    from sandbox.host import Host

    unknown = [number for number in only if number not in TITLES]
    if unknown:
        raise UsageError(f"there is no check {unknown[0]!r}", where="--only", fix=f"one of {', '.join(TITLES)}")
    home = open_home()
    settings = load_settings(home.checkout)
    made = build(home, settings, Repository(home).ensure().fetch_candidate(candidate))
    with Host.detect(home.root) as host:
        checks = check(host, replace(made, command=tuple(command) or made.command), only or None)
    if json_:
        print(json.dumps([asdict(item) for item in checks], indent=2))
    else:
        for item in checks:
            detail = f": {item.detail}" if item.detail and not (item.passed and item.asked) else ""
            print(f"{'ok    ' if item.passed else 'FAILED'} {item.number:>4}  {item.title}{detail}")
    return 0 if all(item.passed for item in checks) else 1
