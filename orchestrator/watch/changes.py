"""What an instance changed on its disk: of a running one read from its layers, of an ended one the list that was kept.

A running instance writes while we read, so nothing is trusted and nothing is changed: directories are opened by
descriptors below the upper, no link is followed, no file is opened at all, and time and count are capped.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.home import Home
from orchestrator.watch.values import Instance

LISTED = 10_000
SECONDS = 0.5  # that one look at a running instance may take


@dataclass(frozen=True)
class ChangeLine:
    """One path, as the instance sees it (untrusted). `kind`: added, modified, deleted, type, mode, xattr; of a running
    instance `modified` means that it was written, its content may be the same."""

    path: str
    kind: str
    directory: bool
    size: int  # bytes


@dataclass(frozen=True)
class Changes:
    """`live`: read while it runs. `cut`: there are more. `note`: what else is to be said, or why there is nothing."""

    rows: tuple[ChangeLine, ...]
    live: bool
    cut: bool
    note: str = ""
    total_bytes: int = 0


def of_instance(home: Home, instance: Instance) -> Changes:
    """Of a running instance."""
    raise NotImplementedError


def of_trial(home: Home, campaign: str, trial: str) -> Changes:
    """Of an ended trial: the list that was kept."""
    raise NotImplementedError


def look(home: Home, name: str, running: Instance | None = None) -> Changes:
    """Of whatever `name` is: the running instance if there is one, else the trial. Raises UsageError if unknown."""
    raise NotImplementedError
