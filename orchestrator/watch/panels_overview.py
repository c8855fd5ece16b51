"""What every view has at its top, and the instances. Pure functions from values to Rich renderables.

All panels keep to these rules: no more than `width` columns; meaning is in words and signs, colour only adds to it (the
terminal's own 16 colours, so that light and dark both work); every text that others wrote is made harmless.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from orchestrator.watch.columns import Column
from orchestrator.watch.values import Instance, Snapshot

COLUMNS: tuple[Column[Instance], ...] = ()


def headline(snapshot: Snapshot, width: int) -> Text:
    """Two lines: who supervises and what main is; how much runs, at which rate, at what cost."""
    raise NotImplementedError


def instances(snapshot: Snapshot, width: int) -> RenderableType:
    """The table of instances; what to do next where there are none."""
    raise NotImplementedError


def instance_head(instance: Instance, width: int) -> RenderableType:
    """One instance in three lines: who, how far, at what cost, with sparklines of cpu and tokens."""
    raise NotImplementedError


def rates(snapshot: Snapshot) -> Sequence[tuple[str, str]]:
    """(name, amount) of the totals that `headline` shows."""
    raise NotImplementedError


def overview(snapshot: Snapshot, width: int) -> RenderableType:
    """Headline, instances, campaigns, the last events: what `sia status` shows on a terminal."""
    raise NotImplementedError
