"""One campaign as its trials end. Finished records are parsed once."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.campaign_view import CampaignView
from orchestrator.home import Home
from orchestrator.watch.values import Left, SoFar


@dataclass(frozen=True)
class CampaignNow:
    """A campaign as of now. `view.verdicts` are the final ones; `so_far` is there while there are none.

    `seconds` is how long it has been at work: until now, or until its last trial ended.
    """

    serial: int  # grows when a trial changed
    view: CampaignView
    so_far: tuple[SoFar, ...]
    left: Left
    running: int
    seconds: float
    tokens: int
    cost: float | None  # None once one trial's is unknown


class CampaignFeed:
    """Reads one campaign. Not for several threads at once."""

    def __init__(self, home: Home, campaign: str) -> None:
        """`campaign`: id, unique prefix, number or `last`. Raises UsageError if there is none."""
        raise NotImplementedError

    @property
    def id(self) -> str:
        """The campaign's full id."""
        raise NotImplementedError

    def poll(self) -> CampaignNow:
        """The present state. The running verdicts are computed again only when a trial has ended, and then not too
        often. Raises ConfigError where the database can't be read."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the connection."""
        raise NotImplementedError
