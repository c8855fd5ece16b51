"""The list of iterations as lines: ten thousand of them, of which only those that are looked at are read."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from rich.text import Text

from orchestrator.watch.columns import Placed, place
from orchestrator.watch.iterations import Line, Live
from orchestrator.watch.panels_detail import LINES


class IterationRows:
    """`count` finished iterations and, as the last line, the one at work. `missing` are those seen but not read yet."""

    def __init__(self) -> None:
        self.count = 0
        self.live: Live | None = None
        self.missing: set[int] = set()
        self._lines: dict[int, Line] = {}
        self._placed: tuple[int, tuple[Placed[Line], ...]] = (-1, ())

    def fill(self, count: int, live: Live | None) -> IterationRows:
        """More of them."""
        self.count, self.live = count, live
        return self

    def add(self, lines: Sequence[Line]) -> None:
        """What was missing has been read."""
        if len(self._lines) > 5000:
            self._lines.clear()
        self._lines.update((line.n, line) for line in lines)
        self.missing.difference_update(line.n for line in lines)

    def __len__(self) -> int:
        return self.count + (1 if self.live is not None else 0)

    def line(self, n: int, width: int) -> Text:
        """One iteration; until it has been read its number stands there."""
        if n >= self.count:
            state = self.live.state if self.live else ""
            return Text(f" {n + 1:>5} {state}…", "bold", end="", no_wrap=True)
        found = self._lines.get(n + 1)
        if found is None:
            self.missing.add(n + 1)
            return Text(f" {n + 1:>5} …", end="", no_wrap=True)
        line = Text(" ", end="", no_wrap=True)
        for number, placed in enumerate(self._place(width)):
            line.append(" " if number else "").append_text(placed.render(found))
        return line

    def key(self, n: int) -> Hashable:
        """The iteration's number."""
        return n + 1

    def header(self, width: int) -> Text | None:
        """The titles of the columns."""
        line = Text(" ", end="", no_wrap=True)
        for number, placed in enumerate(self._place(width)):
            line.append(" " if number else "").append_text(placed.heading())
        return line

    def _place(self, width: int) -> tuple[Placed[Line], ...]:
        if self._placed[0] != width:
            self._placed = (width, place(LINES, width))
        return self._placed[1]
