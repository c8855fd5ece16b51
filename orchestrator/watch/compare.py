"""Two journals side by side."""

from __future__ import annotations

import difflib
import time
from contextlib import closing
from dataclasses import dataclass

from orchestrator import database, trajectory
from orchestrator.home import Home
from orchestrator.journal import Exchange
from orchestrator.untrusted import printable
from orchestrator.watch.context_tree import conversation, plainly
from orchestrator.watch.iterations import Iterations, Line

COMPARED_LINES = 5000  # of each request
REST = 20  # a comparison of running trials is made again after this many times what it took


@dataclass(frozen=True)
class Row:
    """Aligned iterations. `same`: both answered the same. Where only one side has something the other is None."""

    left: Line | None
    right: Line | None
    same: bool


class Comparison:
    """Two trials. `rows` and `first` are computed by `refresh`, which takes seconds for long journals: use a thread."""

    def __init__(self, home: Home, left: str, right: str) -> None:
        """Names as for `Iterations`. Raises UsageError."""
        self.left = Iterations(home, left)
        try:
            self.right = Iterations(home, right)
        except BaseException:
            self.left.close()
            raise
        self.rows: tuple[Row, ...] = ()
        self.first: int | None = None  # index in `rows` of the first difference; None if there is none
        self.cut = False  # the journals are longer than what is compared of them
        self._compared: tuple[int, int] | None = None
        self._rest_until = float("-inf")

    def refresh(self) -> bool:
        """Compare again if something has come since, but not all the time; returns whether anything changed."""
        self.left.refresh()
        self.right.refresh()
        counts, begun = (self.left.count, self.right.count), time.monotonic()
        if counts == self._compared or begun < self._rest_until:
            return False
        replies = (self.left.replies(), self.right.replies())
        runs = trajectory.compare(*replies)
        lines = [[side.line_of(one) for one in its] for side, its in zip((self.left, self.right), replies, strict=True)]
        self.rows = tuple(_aligned(runs, lines[0], lines[1]))
        self.cut = max(map(len, replies)) > trajectory.COMPARED
        self.first = next((number for number, row in enumerate(self.rows) if not row.same), None)
        self._compared = counts
        self._rest_until = time.monotonic() + REST * (time.monotonic() - begun)
        return True

    def difference(self, row: int, lines: int = 200) -> list[str]:
        """What the two were shown at a row, as lines of a unified diff (harmless text); [] where one side is missing
        or both are the same."""
        pair = self.pair(row)
        if pair[0] is None or pair[1] is None:
            return []
        left, right = trajectory.prompt(pair[0]), trajectory.prompt(pair[1])
        if conversation(left) is not None or conversation(right) is not None:
            found = _difference(left, right, lines)
        else:
            found = trajectory.context_difference(pair[0], pair[1], lines)
        return [printable(line).replace("\n", " ") for line in found]

    def pair(self, row: int) -> tuple[Exchange | None, Exchange | None]:
        """Both sides of a row, with their texts."""
        there = self.rows[row]
        return (
            None if there.left is None else self.left.get(there.left.n),
            None if there.right is None else self.right.get(there.right.n),
        )

    @property
    def agreeing(self) -> int:
        """How many rows are the same on both sides."""
        return sum(row.same for row in self.rows)

    def close(self) -> None:
        """Release the connections."""
        self.left.close()
        self.right.close()


def _aligned(runs: list[trajectory.Run], left: list[Line], right: list[Line]) -> list[Row]:
    """Runs as rows: what only one side has stands beside what only the other has, where they follow each other."""
    rows: list[Row] = []
    sides, waiting = (iter(left), iter(right)), 0  # rows at the end with a left side alone
    for run in runs:
        for _ in run.numbers:
            if run.kind == "same":
                rows.append(Row(next(sides[0]), next(sides[1]), True))
            elif run.kind == "left":
                rows.append(Row(next(sides[0]), None, False))
            elif waiting:
                rows[-waiting] = Row(rows[-waiting].left, next(sides[1]), False)
                waiting -= 1
            else:
                rows.append(Row(None, next(sides[1]), False))
        waiting = len(run.numbers) if run.kind == "left" else 0
    return rows


def _difference(left: str, right: str, lines: int) -> list[str]:
    """Of two requests of which at least one is a conversation."""
    texts = [plainly(one).splitlines()[:COMPARED_LINES] for one in (left, right)]
    found = list(difflib.unified_diff(texts[0], texts[1], "left", "right", lineterm="", n=1))
    return found[:lines] + ([f"… {len(found) - lines} more lines"] if len(found) > lines else [])


def partner(home: Home, trial: str) -> str | None:
    """The trial to compare one with: the same task and repeat of the baseline (of a baseline's: of the first
    candidate). None if there is none with a journal."""
    connection = database.look(home.database)
    if connection is None:
        return None
    with closing(connection):
        row = connection.execute(
            "SELECT other.id FROM trial mine JOIN trial other ON other.campaign = mine.campaign"
            " AND other.task = mine.task AND other.repeat = mine.repeat AND other.id != mine.id"
            " JOIN arm ON arm.campaign = other.campaign AND arm.name = other.arm"
            " JOIN journal ON journal.id = other.id"
            " WHERE mine.id = ? ORDER BY arm.role != 'baseline', arm.rowid LIMIT 1",
            (trial.partition("~")[0],),
        ).fetchone()
    return None if row is None else str(row[0])
