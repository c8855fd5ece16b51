"""What this process can isolate with: found once, then used for every launch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Host:
    """One supervisor's means of isolation. Several may exist at the same time, in one process or many.

    `root` says whether this process is root; then sandboxes run as the unprivileged `uid`/`gid` below, else as this
    user. Callers pass ordinary host paths everywhere. Thread-safe. Use as a context manager or call `close()`.
    """

    state: Path
    root: bool
    uid: int
    gid: int
    bwrap: Path
    memory_enforcer: str  # what will bound tree memory: "cgroup v2", "cgroup v1", "systemd scope", "watchdog"

    @classmethod
    def detect(cls, state: Path) -> Host:
        """Find bwrap, the shell for pid 1, seccomp and a memory enforcer; start the spawner. `state` (created if
        missing) is the directory below which uppers lie. Raises CannotIsolate with the reason and the fix."""
        raise NotImplementedError

    def make_upper(self, parent: Path, name: str) -> tuple[Path, Path]:
        """Create `parent/name/{upper,work}` for the sandbox uid, in a directory that is 0700; return both."""
        raise NotImplementedError

    def own(self, path: Path) -> None:
        """Give the tree at `path` to the sandbox uid (never follows symlinks). Nothing to do for a user."""
        raise NotImplementedError

    def remove(self, path: Path) -> None:
        """Remove a tree that an instance may have written (mode-000 directories, `work/work`…). Missing is fine."""
        raise NotImplementedError

    def close(self) -> None:
        """Kill what is left of this host's sandboxes, and release everything. May be called twice."""
        raise NotImplementedError

    def __enter__(self) -> Host:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
