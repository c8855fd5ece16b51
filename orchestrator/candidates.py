"""From a branch to the commit that is judged: merge first, agent paths only (EVIDENCE.md, promotion)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.agent_build import AgentBuild
from orchestrator.home import Home
from orchestrator.repository import Repository

if TYPE_CHECKING:
    from orchestrator.config import Settings


@dataclass(frozen=True)
class Candidate:
    """A candidate merged with a generation. `judged` is J, the only commit that a verdict about it can promote."""

    name: str
    proposed: str
    judged: str
    tree: str
    left_out: tuple[str, ...]
    requirements_changed: bool


def prepare(repo: Repository, settings: Settings, name: str, generation: str) -> Candidate:
    """Fetch `name`, merge its agent paths with `generation`, and return the judged commit.

    The same name, commits and paths always give the same J. Raises Refused with the reason: doesn't exist, no shared
    history, conflict, nothing changed in the agent paths, a submodule, a symlink that leaves the tree, too large.
    """
    raise NotImplementedError


def build(home: Home, settings: Settings, commit: str, *, root: Path | None = None) -> AgentBuild:
    """Export, environment and bundle of a judged commit or a generation; each exists already after the first call.

    `root` is where the export goes (default `home.exports`; the ledger passes `home.generations`). Raises Refused when
    the environment is missing and `[agent] build_environments` is false.
    """
    raise NotImplementedError
