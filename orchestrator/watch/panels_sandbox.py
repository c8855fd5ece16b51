"""What an instance changed on its disk."""

from __future__ import annotations

from rich.console import RenderableType
from rich.text import Text

from orchestrator.watch.changes import ChangeLine, Changes
from orchestrator.watch.columns import Column

CHANGES: tuple[Column[ChangeLine], ...] = ()


def head(changes: Changes, name: str, width: int) -> Text:
    """How many of each kind, how many bytes, whether it still runs, what is left out."""
    raise NotImplementedError


def sandbox(changes: Changes, name: str, width: int, *, last: int = 500) -> RenderableType:
    """Head and list."""
    raise NotImplementedError
