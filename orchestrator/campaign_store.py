"""Campaigns in the database: what was planned, what ran, what was concluded. No other module writes these tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlite3


@dataclass(frozen=True)
class Judged:
    """A candidate that a campaign has a verdict on: what the promotion gate looks at."""

    campaign: str
    arm: str
    baseline: str  # commit it was judged against; promotable only while this is the current generation
    proposed: str  # the commit that was named
    judged: str  # J, the commit that ran
    tree: str  # tree hash of J's agent paths
    verdict: str
    numbers: dict[str, Any]  # `verdict.Verdict` as a dict


def find_judged(connection: sqlite3.Connection, candidate: str, campaign: str | None = None) -> Judged:
    """The verdict on `candidate` in `campaign` (id or unique prefix; default: the newest finished one that judged it).

    Raises UsageError if there is none, or if that campaign is not finished.
    """
    raise NotImplementedError
