"""Two trials side by side."""

from __future__ import annotations

from rich.console import RenderableType

from orchestrator.watch.columns import Column
from orchestrator.watch.compare import Comparison, Row

ROWS: tuple[Column[Row], ...] = ()


def head(comparison: Comparison, width: int) -> RenderableType:
    """Who is compared with whom, how many answers agree, where they first part."""
    raise NotImplementedError


def difference(comparison: Comparison, row: int, width: int, *, lines: int = 200) -> RenderableType:
    """The two answers of a row and what the two were shown."""
    raise NotImplementedError


def compare(comparison: Comparison, width: int, *, around: int = 20) -> RenderableType:
    """All of it: head, the rows around the first difference, that difference."""
    raise NotImplementedError
