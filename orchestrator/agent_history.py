"""The agent's history as it sees it (agent paths only), and commits that come back from inside as bundles."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from orchestrator.home import Home
from orchestrator.repository import Repository


def bundle(repo: Repository, commit: str, paths: Sequence[str]) -> Path:
    """A git bundle (HEAD and branch `main`) of the last 50 first-parent commits of `commit`, agent paths only."""
    raise NotImplementedError


def accept_proposal(home: Home, branch: str, why: str, bundle: bytes, origin: str, paths: Sequence[str]) -> str:
    """Check a bundle made inside a sandbox and store it as one commit; returns the candidate's name, `proposal/N`.

    `origin` is the trial's id or `main`; `paths` are `[agent] paths`. Raises Refused with a text for the model: not a
    bundle, over 16 MB, broken or forbidden objects, unknown base, nothing changed.
    """
    raise NotImplementedError
