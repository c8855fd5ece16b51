"""The user's checkout, only ever read: names are resolved by `rev-parse`, objects are read as alternates.

It may belong to another user than the one that runs SIA, so nothing that its configuration names may be executed:
no porcelain, no index, no transport runs in it (gitio.py).
"""

from __future__ import annotations

import re
from pathlib import Path

from orchestrator.errors import ConfigError
from orchestrator.gitio import Git


class Checkout:
    """A working tree, a linked worktree, or one with a detached HEAD."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self._format_checked = False

    def directory(self) -> Path:
        """Its git directory. `.git` is a file in linked worktrees and submodules."""
        dot = self.top / ".git"
        if dot.is_dir():
            return dot
        try:
            found = re.fullmatch(r"gitdir: (.+)\n?", dot.read_text("utf-8", "surrogateescape"))
        except OSError:
            found = None
        directory = (self.top / found[1]) if found else None
        if directory is None or not directory.is_dir():
            raise ConfigError("not a git repository", where=str(dot), fix="run `git init`, or repair the worktree")
        return directory

    def common(self) -> Path:
        """The directory that linked worktrees share: objects and branches."""
        directory = self.directory()
        pointer = directory / "commondir"
        return directory / pointer.read_text("utf-8", "surrogateescape").strip() if pointer.exists() else directory

    def objects(self) -> Path:
        """Its object store."""
        return (self.common() / "objects").resolve()

    def shallow(self) -> list[str]:
        """Commits whose parents are not there (a shallow clone); usually none."""
        file = self.common() / "shallow"
        return re.findall(r"^[0-9a-f]{40}$", file.read_text("ascii", "replace"), re.M) if file.exists() else []

    def head(self) -> str:
        """The commit that is checked out. Raises ConfigError if there is none yet, or git can't read the repository."""
        commit = self.commit("HEAD")
        if commit is None:
            fix = "commit your agent first: git add --all && git commit"
            raise ConfigError("the repository has no commit yet", where=str(self.top), fix=fix)
        return commit

    def commit(self, name: str) -> str | None:
        """The full id of the commit that a branch (looked up first), tag or revision names, or None."""
        git = self._git()
        if name.startswith("-"):
            return None
        return git.commit_of(f"refs/heads/{name}") or git.commit_of(name)

    def branches(self) -> list[str]:
        """Local branch names, the latest commit first."""
        return (
            self._git()
            .line("for-each-ref", "--sort=-committerdate", "--format=%(refname:lstrip=2)", "refs/heads")
            .split()
        )

    def _git(self) -> Git:
        git = Git(self.directory())
        if not self._format_checked:
            found = git.line("rev-parse", "--show-object-format")
            if found != "sha1":
                what = f"the repository uses the object format {found}; SIA supports sha1"
                fix = "convert it (git fast-export | git fast-import into a new repository)"
                raise ConfigError(what, where=str(self.top), fix=fix)
            self._format_checked = True
        return git
