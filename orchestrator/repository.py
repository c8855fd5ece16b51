"""The supervisor's own bare repository `.sia/repo.git`. Its branch `main` is what runs; the checkout is only read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.home import Home


@dataclass(frozen=True)
class Export:
    """Agent paths of a commit on disk, read-only and complete. `tree` is the hash of what lies at `path`."""

    path: Path
    tree: str


class Repository:
    """Candidates are fetched into it, judged commits are made in it. Safe to use from several threads and processes."""

    def __init__(self, home: Home) -> None:
        self.home = home
        self.path = home.repository

    def ensure(self) -> Repository:
        """Create it from the checkout's HEAD commit (generation 1) unless it exists. Returns self.

        Raises ConfigError: no commit yet, sha256 repository, git older than 2.38.
        """
        raise NotImplementedError

    def head(self) -> str:
        """The commit of `main`."""
        raise NotImplementedError

    def fetch_candidate(self, name: str) -> str:
        """Fetch a branch, commit or `proposal/N` and return its full commit id.

        Raises Refused: doesn't exist, shares no history with `main`.
        """
        raise NotImplementedError

    def move_main(self, new: str, old: str) -> None:
        """Compare-and-swap of `main`, durable when it returns. Raises Failed if `main` is not at `old`."""
        raise NotImplementedError

    def set_ref(self, ref: str, commit: str) -> None:
        """Point a ref below refs/sia/ (for example `refs/sia/bad/3`) at a commit, durably."""
        raise NotImplementedError

    def file(self, commit: str, path: str) -> bytes | None:
        """Content of one file of a commit, or None."""
        raise NotImplementedError

    def export(self, commit: str, paths: Sequence[str], root: Path) -> Export:
        """`root/<commit>` with the agent paths of that commit: made whole or not at all, verified on every call."""
        raise NotImplementedError
