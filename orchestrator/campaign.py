"""Run a campaign: prepare the candidates, run the trials in parallel, store each result as it ends, conclude."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from orchestrator.home import Home


def run_campaign(home: Home, file: Path) -> str:
    """Start the campaign that `file` describes, run it to its verdicts, and return its id.

    Everything that can be refused is refused before a trial runs (ConfigError or Refused, naming every faulty candidate).
    Progress goes to stderr. Raises Interrupted (exit code 130) after Ctrl-C; `resume` then finishes it.
    """
    raise NotImplementedError


def resume(home: Home, campaign: str) -> str:
    """Finish an interrupted campaign (id or unique prefix): finished trials are never run again."""
    raise NotImplementedError
