"""Two journals side by side."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.home import Home
from orchestrator.watch.iterations import Iterations, Line


@dataclass(frozen=True)
class Row:
    """Aligned iterations. `same`: both answered the same. Where only one side has something the other is None."""

    left: Line | None
    right: Line | None
    same: bool


class Comparison:
    """Two trials. `rows` and `first` are computed by `refresh`, which takes seconds for long journals: use a thread."""

    left: Iterations
    right: Iterations
    rows: tuple[Row, ...]
    first: int | None  # index in `rows` of the first difference; None if there is none

    def __init__(self, home: Home, left: str, right: str) -> None:
        """Names as for `Iterations`. Raises UsageError."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """Compare what has come since; returns whether anything changed."""
        raise NotImplementedError

    def difference(self, row: int, lines: int = 200) -> list[str]:
        """What the two were shown at a row, as lines of a unified diff (harmless text); [] where one side is missing
        or both are the same."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the connections."""
        raise NotImplementedError


def partner(home: Home, trial: str) -> str | None:
    """The trial to compare one with: the same task and repeat of the baseline (of a baseline's: of the first
    candidate). None if there is none with a journal."""
    raise NotImplementedError
