"""Columns of tables that grow with the terminal: for Rich tables and for the application's data tables alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from rich.console import Group, RenderableType
from rich.text import Text

Row = TypeVar("Row")
MARGIN = 1  # blank columns at each side of a table


@dataclass(frozen=True)
class Column(Generic[Row]):
    """`cell` gives harmless text of one line. `width`: cells that it takes; a flexible one takes at least that many and
    its share of what is left, and is cut with `…`. It is shown in terminals of at least `from_width` columns. `sort`
    gives what rows sort by. `weight`: share of a flexible one."""

    key: str
    title: str
    cell: Callable[[Row], Text]
    width: int
    right: bool = False
    flexible: bool = False
    from_width: int = 0
    sort: Callable[[Row], object] | None = None
    weight: int = 1


@dataclass(frozen=True)
class Placed(Generic[Row]):
    """A column with the width that it has in a terminal."""

    column: Column[Row]
    width: int

    def render(self, row: Row) -> Text:
        """Its cell: exactly `width` cells wide, however wide the characters are."""
        return fitted(self.column.cell(row), self.width, right=self.column.right)

    def heading(self) -> Text:
        """Its title, aligned like its cells."""
        return fitted(Text(self.column.title, "bold"), self.width, right=self.column.right)


def fitted(text: Text, width: int, *, right: bool = False) -> Text:
    """A copy of a text without line breaks that is exactly `width` cells wide: cut with `…`, or padded."""
    cell = text.copy()
    cell.no_wrap, cell.end = True, ""
    if "\n" in cell.plain:
        cell = Text(" ", end="", no_wrap=True).join(cell.split("\n"))
    if cell.cell_len > width:
        cell.truncate(width, overflow="ellipsis")
    missing = width - cell.cell_len
    if missing > 0 and right:
        cell.pad_left(missing)
    elif missing > 0:
        cell.pad_right(missing)
    return cell


def place(columns: Sequence[Column[Row]], width: int) -> tuple[Placed[Row], ...]:
    """The columns that fit into a terminal of `width`, with their widths (a space lies between two columns).

    In a terminal that is too narrow for all of them the last ones are left out.
    """
    shown = [column for column in columns if column.from_width <= width]
    room = width - 2 * MARGIN
    while len(shown) > 1 and _needs(shown) > room:
        shown.pop()
    spare = room - _needs(shown)
    shares = sum(column.weight for column in shown if column.flexible)
    placed = []
    for column in shown:
        extra = 0
        if column.flexible and spare > 0:
            extra = spare * column.weight // shares
            spare, shares = spare - extra, shares - column.weight
        placed.append(Placed(column, max(1, min(column.width + extra, room))))
    return tuple(placed)


def _needs(columns: Sequence[Column[Row]]) -> int:
    return sum(column.width for column in columns) + max(0, len(columns) - 1)


def line(cells: Sequence[Text]) -> Text:
    """Cells as one line of a table."""
    joined = Text(" " * MARGIN, no_wrap=True, overflow="crop")
    for number, cell in enumerate(cells):
        joined.append(" " if number else "")
        joined.append_text(cell)
    joined.rstrip()
    return joined


def table(columns: Sequence[Column[Row]], rows: Sequence[Row], width: int) -> RenderableType:
    """A plain table: a heading and a line for each row."""
    placed = place(columns, width)
    lines = [line([one.heading() for one in placed])]
    lines += [line([one.render(row) for one in placed]) for row in rows]
    return Group(*lines)
