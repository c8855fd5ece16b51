"""Tables as a source of lines: filtered and sorted rows, drawn only where they are looked at."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from typing import Any, Generic, TypeVar

from rich.text import Text

from orchestrator.watch.columns import Column, Placed, place

Row = TypeVar("Row")
FIXED = 2  # columns that stay when the others are scrolled


class Table(Generic[Row]):
    """Rows with columns. `words` gives what the filter looks at (quick: it is asked of every row)."""

    def __init__(
        self,
        columns: Sequence[Column[Row]],
        key: Callable[[Row], Hashable],
        words: Callable[[Row], str],
    ) -> None:
        self.columns = columns
        self._key, self._words = key, words
        self._rows: Sequence[Row] = ()
        self._keys: set[Hashable] = set()
        self.seen: Sequence[Row] = ()  # filtered and sorted
        self.filter = ""
        self.sorted: str | None = None
        self.reverse = False
        self._shift = 0
        self._placed: tuple[int, tuple[Placed[Row], ...]] = (-1, ())
        self._drawn: dict[Hashable, tuple[Row, int, Text]] = {}

    @property
    def total(self) -> int:
        """Rows before the filter."""
        return len(self._rows)

    def fill(self, rows: Sequence[Row]) -> Table[Row]:
        """Other rows; returns the table, ready to be shown again."""
        self._rows = rows
        self._arrange()
        return self

    def set_filter(self, text: str) -> Table[Row]:
        """Only rows with all these words."""
        self.filter = text
        self._arrange()
        return self

    def sort_next(self) -> str:
        """Sort by the next column that has an order; returns its title (empty: the rows' own order)."""
        names = [None, *(column.key for column in self.columns if column.sort is not None)]
        self.sorted = names[(names.index(self.sorted) + 1) % len(names)]
        self.reverse = False
        self._arrange()
        return next((column.title for column in self.columns if column.key == self.sorted), "")

    def flip(self) -> None:
        """The other way round."""
        self.reverse = not self.reverse
        self._arrange()

    def _arrange(self) -> None:
        words = self.filter.lower().split()
        rows: Sequence[Row] = self._rows
        if words:
            rows = [row for row in rows if _has(self._words(row).lower(), words)]
        column = next((column for column in self.columns if column.key == self.sorted), None)
        if column is not None and column.sort is not None:
            order = column.sort
            known = [row for row in rows if order(row) is not None]
            known.sort(key=lambda row: _orderable(order(row)), reverse=self.reverse)
            rows = [*known, *(row for row in rows if order(row) is None)]  # the unknown last, either way round
        elif self.reverse:
            rows = list(reversed(rows))
        self.seen = rows

    # -- a source of lines

    def __len__(self) -> int:
        return len(self.seen)

    def line(self, n: int, width: int) -> Text:
        """A row, drawn anew only when it is another object than before."""
        row = self.seen[n]
        key = self._key(row)
        drawn = self._drawn.get(key)
        if drawn is not None and drawn[0] is row and drawn[1] == width:
            return drawn[2]
        text = _join([placed.render(row) for placed in self._place(width)])
        if len(self._drawn) > 4 * 256:
            self._drawn.clear()
        self._drawn[key] = (row, width, text)
        return text

    def key(self, n: int) -> Hashable:
        """What the row is about."""
        return self._key(self.seen[n])

    def header(self, width: int) -> Text | None:
        """The titles; the column that is sorted by has an arrow."""
        cells = []
        for placed in self._place(width):
            cell = placed.heading()
            if placed.column.key == self.sorted:
                arrow = "▼" if self.reverse else "▲"
                cell = _arrowed(cell, arrow, right=placed.column.right)
            cells.append(cell)
        return _join(cells)

    def at(self, n: int) -> Row | None:
        """The row of a line."""
        return self.seen[n] if 0 <= n < len(self.seen) else None

    def shift(self, by: int, width: int) -> None:
        """Columns to the right that had no room; those of the left make it. The first ones, which name it, stay."""
        last = max(0, len(self.columns) - FIXED - 1)
        wanted = min(max(0, self._shift + by), last)
        if by > 0 and self._place(width)[-1].column.key == self.columns[-1].key:
            return  # the last one is seen
        self._shift = wanted
        self._placed = (-1, ())
        self._drawn.clear()

    def _place(self, width: int) -> tuple[Placed[Row], ...]:
        if self._placed[0] != width:
            columns = self.columns
            if self._shift:
                rest = columns[FIXED + self._shift :]
                columns = (*columns[:FIXED], *(replace(column, from_width=0) for column in rest))
            self._placed = (width, place(columns, width))
        return self._placed[1]


def _join(cells: Sequence[Text]) -> Text:
    line = Text(" ", end="", no_wrap=True)
    for number, cell in enumerate(cells):
        if number:
            line.append(" ")
        line.append_text(cell)
    return line


def _arrowed(cell: Text, arrow: str, *, right: bool) -> Text:
    """The arrow takes the place of a blank where there is one, so that the column keeps its width."""
    plain = cell.plain
    if right and plain.startswith(" "):
        return Text((arrow + plain.lstrip()).rjust(len(plain)))
    if plain.endswith(" "):
        stripped = plain.rstrip()
        return Text((stripped + arrow).ljust(len(plain)))
    return Text(plain[:-1] + arrow)


def _has(text: str, words: Sequence[str]) -> bool:
    return all(word in text for word in words)


def _orderable(value: Any) -> tuple[int, Any]:
    """Numbers before texts, should a column have both."""
    return (0, value) if isinstance(value, int | float) else (1, str(value))
