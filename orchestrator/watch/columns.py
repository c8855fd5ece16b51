"""Columns of tables that grow with the terminal: for Rich tables and for the application's data tables alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import RenderableType
from rich.text import Text

Row = TypeVar("Row")


@dataclass(frozen=True)
class Column(Generic[Row]):
    """`cell` gives harmless text of one line. `width`: cells that it takes; a flexible one takes its share of the rest
    and is cut with `…`. It is shown in terminals of at least `from_width` columns. `sort` gives what rows sort by."""

    key: str
    title: str
    cell: Callable[[Row], Text]
    width: int
    right: bool = False
    flexible: bool = False
    from_width: int = 0
    sort: Callable[[Row], object] | None = None


@dataclass(frozen=True)
class Placed(Generic[Row]):
    """A column with the width that it has in a terminal."""

    column: Column[Row]
    width: int

    def render(self, row: Row) -> Text:
        """Its cell: exactly `width` cells wide, however wide the characters are."""
        raise NotImplementedError

    def heading(self) -> Text:
        """Its title, aligned like its cells."""
        raise NotImplementedError


def place(columns: Sequence[Column[Row]], width: int) -> tuple[Placed[Row], ...]:
    """The columns that fit into a terminal of `width`, with their widths (a space lies between two columns)."""
    raise NotImplementedError


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> RenderableType:
    """A plain table: a heading and a line for each row."""
    raise NotImplementedError
