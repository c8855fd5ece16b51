"""Compare: two trials side by side, and where they first part."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.text import Text
from textual.app import ComposeResult

from orchestrator.errors import UsageError
from orchestrator.home import Home
from orchestrator.watch.bars import Bar
from orchestrator.watch.compare import Comparison, Row, partner
from orchestrator.watch.lines import Lines
from orchestrator.watch.panels_compare import ROWS, difference, head
from orchestrator.watch.panes import Body, Pane, Stack
from orchestrator.watch.sources import Texts, draw
from orchestrator.watch.tables import Table
from orchestrator.watch.values import Snapshot
from orchestrator.watch.view import Target, View

EMPTY = (
    "Two trials are compared: c on the first, then c on the second, in the list of instances (1) or among a campaign's "
    "trials (2).\n\nFrom the shell: sia watch --view compare TRIAL [TRIAL]"
)
EVERY = 2.0
ROW_LIST, DIFFERENCE = range(2)


@dataclass(frozen=True)
class CompareNow:
    """What `refresh` found. `serial` grows with each change."""

    ident: str
    serial: int
    left: str
    right: str
    rows: tuple[Row, ...]
    first: int | None
    head: tuple[Text, ...]


class CompareReader:
    """The reading half; everything runs in the reading thread."""

    def __init__(self, home: Home, ident: str) -> None:
        self.ident = ident
        self.width = 80
        self._home = home
        self._comparison: Comparison | None = None
        self._now: CompareNow | None = None
        self._drawn = 0  # the width of the head

    def poll(self) -> CompareNow:
        """Compare what has come since. Raises UsageError: no such trials, or nothing to compare one with."""
        if self._comparison is None:
            left, _, right = self.ident.partition(" ")
            other = right or partner(self._home, left)
            if other is None:
                raise UsageError(f"nothing to compare {left} with", fix="mark two trials with c")
            self._comparison = Comparison(self._home, left, other)
        both = self._comparison
        if both.refresh() or self._now is None or self._drawn != self.width:
            lines = tuple(draw(head(both, self.width), self.width))
            serial = self._now.serial + 1 if self._now else 0
            self._drawn = self.width
            self._now = CompareNow(self.ident, serial, both.left.id, both.right.id, both.rows, both.first, lines)
        return self._now

    def difference(self, row: int, width: int) -> list[Text]:
        """What differs in a row, drawn."""
        if self._comparison is None or not 0 <= row < len(self._comparison.rows):
            return []
        return draw(difference(self._comparison, row, width, lines=2000), width)

    def close(self) -> None:
        """Release the connections."""
        if self._comparison is not None:
            self._comparison.close()
            self._comparison = None


class CompareView(View):
    """Aligned iterations, and what differs in the one under the cursor."""

    TITLE = "compare"
    ACTIONS = ("divergence", "open", "next_pane")

    def __init__(self) -> None:
        """Made whole at once: news may come before it is composed."""
        super().__init__()
        self.ident = ""
        self.now: CompareNow | None = None
        self.reader: CompareReader | None = None
        self._asked: tuple[int, int] = (-1, -1)
        self.table: Table[Row] = Table(ROWS, key=_key, words=_words)
        self.panes = [
            Lines("compare-rows", empty=EMPTY),
            Lines("compare-difference", cursor=False, empty="what differs in the row under the cursor"),
        ]

    def compose(self) -> ComposeResult:
        """A list of rows, and the difference."""
        yield Bar("compare-head", lines=0)
        yield Body([Stack((Pane(self.panes[0], "iterations"),)), Stack((Pane(self.panes[1], "difference"),))])

    # -- reading

    def enter(self, ident: str) -> None:
        """Two names with a blank between; one name: it is compared with the baseline's trial; empty: as before."""
        if ident and ident != self.ident:
            self.ident, self.now, self._asked = ident, None, (-1, -1)
            self.panes[ROW_LIST].set_empty("comparing…")
            self.panes[ROW_LIST].show(self.table.fill(()), keep=False)
            self.panes[DIFFERENCE].show(Texts([]), keep=False)
            if self.reader is not None:
                self.watch_app.comparing.once("close", self.reader.close)
            self.reader = CompareReader(self.watch_app.home, ident)
        if self.reader is not None:
            self.reader.width = self.room
            self.watch_app.comparing.every("compare", EVERY, self.reader.poll)

    def leave(self) -> None:
        """No more."""
        self.watch_app.comparing.drop("compare")
        self.watch_app.comparing.drop("difference")

    def pane_changed(self) -> None:
        """The head has another width."""
        super().pane_changed()
        if self.reader is not None:
            self.reader.width = self.room
        self._asked = (-1, -1)
        self._difference()

    def loaded(self, name: str, value: Any, error: BaseException | None) -> None:
        """The rows, or one difference."""
        if error is not None:
            if name == "compare":
                self.panes[ROW_LIST].set_empty(self.watch_app.words_of(error))
                self.panes[ROW_LIST].repaint()
            return
        if name == "compare" and value.ident == self.ident:
            self._news(value)
        elif name == "difference" and value[:2] == (self.ident, self.panes[ROW_LIST].cursor):
            self.panes[DIFFERENCE].show(Texts(value[2]), keep=False)

    def _news(self, now: CompareNow) -> None:
        before, self.now = self.now, now
        if before is not None and before.serial == now.serial:
            return
        self.put("compare-head", *now.head)
        self.panes[ROW_LIST].set_empty("neither has answered anything yet")
        self.panes[ROW_LIST].show(self.table.fill(now.rows))
        if before is None:
            self.act("divergence")
        self._difference()

    def _difference(self) -> None:
        if self.now is None or self.reader is None:
            return
        row = self.table.at(self.panes[ROW_LIST].cursor)
        if row is None:
            return
        index, serial = self.now.rows.index(row), self.now.serial
        if (index, serial) == self._asked:
            return
        self._asked = (index, serial)
        reader, ident, cursor = self.reader, self.ident, self.panes[ROW_LIST].cursor
        width = max(20, (self.panes[DIFFERENCE].size.width or self.room) - 1)  # 0 while it is not shown

        def read() -> tuple[str, int, list[Text]]:
            return ident, cursor, reader.difference(index, width)

        self.watch_app.comparing.once("difference", read)

    # -- keys

    def moved(self, lines: Lines) -> None:
        """The difference is that of the row under the cursor."""
        if lines is self.panes[ROW_LIST]:
            self._difference()

    def set_filter(self, text: str, *, done: bool) -> None:
        """Fewer rows; in the difference the words are marked."""
        super().set_filter(text, done=done)
        if self.pane_index == ROW_LIST:
            self.panes[ROW_LIST].show(self.table.set_filter(text))
        else:
            self.panes[DIFFERENCE].find(text)

    def search(self, direction: int) -> None:
        """In the difference."""
        self.panes[DIFFERENCE].find_next(direction)

    def snapshot(self, snapshot: Snapshot) -> None:
        """Nothing of the overview is shown."""
        marked = self.watch_app.marked
        if not self.ident and marked:
            self.panes[ROW_LIST].set_empty(f"{marked} is marked: c on another trial compares the two.\n\n{EMPTY}")

    def target(self) -> Target:
        """The left one for the clipboard."""
        return Target(self.now.left if self.now else "")

    def live(self) -> list[str]:
        """Without two trials there is nothing to do."""
        if self.now is None:
            return []
        return [name for name in self.ACTIONS if name != "divergence" or self.now.first is not None]

    def act(self, action: str) -> bool:
        """d jumps; enter goes to the difference."""
        if action == "divergence":
            if self.now is not None and self.now.first is not None:
                row = self.now.rows[self.now.first]
                place = next((n for n, each in enumerate(self.table.seen) if each is row), 0)
                self.panes[ROW_LIST].go(place, centre=True)
            elif self.now is not None:
                self.watch_app.say("the two never part: all answers are the same")
        elif action == "open":
            self.focus_pane(DIFFERENCE)
        elif action in ("next_iteration", "previous_iteration"):
            self.panes[ROW_LIST].act("down" if action == "next_iteration" else "up")
        elif action in ("first_iteration", "last_iteration"):
            self.panes[ROW_LIST].act("top" if action == "first_iteration" else "bottom")
        else:
            return super().act(action)
        return True


def _key(row: Row) -> tuple[int, int]:
    return (row.left.n if row.left else 0, row.right.n if row.right else 0)


def _words(row: Row) -> str:
    return " ".join(f"{line.action} {line.text}" for line in (row.left, row.right) if line is not None)
