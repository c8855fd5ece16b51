"""What an instance is started from: one commit's agent paths with everything that belongs to them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class AgentBuild:
    """One commit, ready to run. Nothing in it can be written by an instance; all trials of a commit share it."""

    commit: str
    """J, the judged commit (40 hex digits)."""
    tree: str
    """Hash of the git tree that holds the agent paths alone; what `exports.tree_hash(export)` must give."""
    export: Path
    """Directory with the agent paths, read-only, shown at /root/sia."""
    environment: Path
    """Virtual environment built from the commit's requirements file, shown at /opt/agent-env."""
    bundle: Path
    """Git bundle of the agent's history (agent paths only), shown at /run/sia/agent.bundle."""
    command: tuple[str, ...]
    """The operator's `[agent] command`; a first word `python` means the environment's interpreter."""
    schema: bytes
    """`action_schema.xsd` of this commit; empty if it has none (answers are then unguided)."""
