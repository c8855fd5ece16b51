"""The ledger of generations, its promotions, the code that each changed."""

from __future__ import annotations

from rich.console import RenderableType

from orchestrator.ledger_values import Generation, Promotion
from orchestrator.watch.columns import Column
from orchestrator.watch.generations_feed import CodeChange, GenerationsNow

GENERATIONS: tuple[Column[Generation], ...] = ()
PROMOTIONS: tuple[Column[Promotion], ...] = ()


def head(now: GenerationsNow, width: int) -> RenderableType:
    """What main is, and which change is under way."""
    raise NotImplementedError


def code(change: CodeChange | None, width: int, *, lines: int | None = None) -> RenderableType:
    """Files with counts, then the diff."""
    raise NotImplementedError


def generations(now: GenerationsNow, width: int) -> RenderableType:
    """All of it but the code; what to do next where there is no generation."""
    raise NotImplementedError
