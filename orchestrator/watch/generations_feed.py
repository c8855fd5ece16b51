"""The ledger of generations, and what each promotion changed in the code."""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.home import Home
from orchestrator.ledger_values import Generation, Promotion, Standing


@dataclass(frozen=True)
class FileChange:
    """One file of a diff. `added`, `removed`: lines; None = binary."""

    path: str
    added: int | None
    removed: int | None


@dataclass(frozen=True)
class CodeChange:
    """The diff between two commits. `lines` are harmless text, `cut` says that there were more."""

    old: str
    new: str
    files: tuple[FileChange, ...]
    lines: tuple[str, ...]
    cut: bool


@dataclass(frozen=True)
class GenerationsNow:
    """`standing` None: there is no generation yet. `generations` and `promotions` are newest first."""

    serial: int
    standing: Standing | None
    generations: tuple[Generation, ...]
    promotions: tuple[Promotion, ...]


class GenerationsFeed:
    """Reads the ledger. Not for several threads at once."""

    def __init__(self, home: Home) -> None:
        """Opens nothing yet."""
        raise NotImplementedError

    def poll(self) -> GenerationsNow:
        """The present state."""
        raise NotImplementedError

    def change(self, number: int, against: int | None = None) -> CodeChange | None:
        """What generation `number` changed against its parent (or `against`); None where it has none.

        Runs git, so it takes a moment: once for each pair, then it is remembered. Raises GitError, Failed.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release the connection."""
        raise NotImplementedError
