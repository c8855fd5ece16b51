"""Tasks in the Harbor layout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from sandbox.host import Host

Split = Literal["train", "validation", "sealed"]


@dataclass(frozen=True)
class Task:
    """A task directory, read and checked. Times are in seconds; resources that the task leaves open are None."""

    name: str  # the directory's name
    path: Path
    instruction: str
    workdir: str
    env: Mapping[str, str]
    agent_timeout: float | None
    verifier_timeout: float
    cpus: int | None
    memory_mb: int | None
    storage_mb: int | None
    allow_internet: bool
    safe_path: bool  # [verifier] safe_path = false marks the task forgeable
    split: Split
    metadata: Mapping[str, Any]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class TaskFiles:
    """A task's files copied for sandboxes: readable by the sandbox uid, never written again."""

    task: Task
    roots: Mapping[str, Path]  # place inside → directory with its starting files; the workdir is always one
    tests: Path
    solution: Path | None
    key: str  # content hash of the whole task directory


def load_task(directory: Path) -> Task:
    """Read a task. Raises ConfigError with the file, the fault and the fix."""
    raise NotImplementedError


def find_tasks(patterns: Sequence[str], root: Path) -> list[Task]:
    """The tasks that directories or glob patterns (relative to `root`) name, in order, each once."""
    raise NotImplementedError


def prepare(task: Task, host: Host, directory: Path) -> TaskFiles:
    """Copy the task's files below `directory` (once: a finished copy of the same content is used again)."""
    raise NotImplementedError
