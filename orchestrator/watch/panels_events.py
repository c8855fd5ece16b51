"""What happened, newest last; and the steps that people asked for."""

from __future__ import annotations

from rich.console import RenderableType

from orchestrator.watch.columns import Column
from orchestrator.watch.values import Event, Snapshot

EVENTS: tuple[Column[Event], ...] = ()


def events(snapshot: Snapshot, width: int, *, last: int | None = None) -> RenderableType:
    """The list, with unanswered requests below it; a sentence where nothing has happened."""
    raise NotImplementedError
