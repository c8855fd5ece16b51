"""A campaign: progress, matrix of rewards, running verdicts, trials."""

from __future__ import annotations

from rich.console import RenderableType

from orchestrator.campaign_view import TrialRow
from orchestrator.watch.campaign_feed import CampaignNow
from orchestrator.watch.columns import Column
from orchestrator.watch.values import Snapshot

TRIALS: tuple[Column[TrialRow], ...] = ()


def head(now: CampaignNow, width: int) -> RenderableType:
    """State, a bar, trials done, time and cost so far and left."""
    raise NotImplementedError


def matrix(now: CampaignNow, width: int) -> RenderableType:
    """Candidates × tasks with mean rewards as they come in; arms become columns, tasks rows."""
    raise NotImplementedError


def verdicts(now: CampaignNow, width: int) -> RenderableType:
    """The verdicts, or while it runs what the same test says so far: difference, interval on a common scale, p."""
    raise NotImplementedError


def campaign(now: CampaignNow, width: int, *, trials: bool = False) -> RenderableType:
    """All of it, one below the other; on wide terminals the matrix beside the verdicts."""
    raise NotImplementedError


def campaigns(snapshot: Snapshot, width: int) -> RenderableType:
    """The list of campaigns, or how to start the first one."""
    raise NotImplementedError
