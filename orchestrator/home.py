"""Where SIA keeps its state: `.sia/` at the top of the user's repository, or `SIA_HOME`."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from orchestrator.errors import ConfigError, UsageError

VERSION = 1  # of the directory's layout; a newer one is refused, an older one is migrated by database.py


@dataclass(frozen=True)
class Home:
    """Paths of one repository's state. `checkout` is never written, `root` is all that is."""

    root: Path
    checkout: Path

    @property
    def database(self) -> Path:
        """SQLite: campaigns, trials, verdicts, the promotion ledger, journal heads."""
        return self.root / "sia.db"

    @property
    def repository(self) -> Path:
        """The supervisor's own bare git repository; its branch `main` is what runs."""
        return self.root / "repo.git"

    @property
    def generations(self) -> Path:
        """`generations/<commit>/`: immutable exports of agent paths, of generations and of judged commits alike: an
        instance sees the path of what it runs from."""
        return self.root / "generations"

    @property
    def environments(self) -> Path:
        """`envs/<hash>/`: Python environments built from requirements; a link is followed: they hold their path."""
        return (self.root / "envs").resolve()

    @property
    def exchanges(self) -> Path:
        """The exchange store and the journals that the broker writes."""
        return self.root / "exchanges"

    @property
    def campaigns(self) -> Path:
        """`campaigns/<id>/`: copies of task files, uppers of trials, reports."""
        return self.root / "campaigns"

    @property
    def main(self) -> Path:
        """Data layers and uppers of the main instance."""
        return self.root / "main"

    @property
    def run(self) -> Path:
        """Locks and sockets of running processes; empty when nothing runs."""
        return self.root / "run"

    @property
    def uses(self) -> Path:
        """`uses/<commit>`: locks of the commits whose exports and bundles processes work with (`orchestrator.uses`)."""
        return self.root / "uses"

    @property
    def cache(self) -> Path:
        """Anything that can be made again."""
        return self.root / "cache"


def locate(start: Path | None = None) -> Home:
    """The home of the repository that `start` (default: the current directory) lies in. Creates nothing.

    Raises UsageError outside any git repository.
    """
    here = (start or Path.cwd()).resolve()
    for directory in (here, *here.parents):
        if (directory / ".git").exists():
            override = os.environ.get("SIA_HOME")
            return Home(Path(override).resolve() if override else directory / ".sia", directory)
    raise UsageError("not inside a git repository", where=str(here), fix="run `git init`, or change to your repository")


def open_home(start: Path | None = None) -> Home:
    """`locate`, then create what is missing and check that it can be used.

    Raises ConfigError if the directory is read-only, on a full disk, or was written by a newer version.
    """
    home = locate(start)
    marker = home.root / "version"
    try:
        home.root.mkdir(parents=True, exist_ok=True)
        ignore = home.root / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n", encoding="ascii")
        if marker.exists():
            _check_version(marker)
        else:
            marker.write_text(f"{VERSION}\n", encoding="ascii")
        home.run.mkdir(mode=0o711, exist_ok=True)
        probe = home.run / f".probe.{os.getpid()}"
        probe.write_bytes(b"\0" * 4096)  # a full disk takes the name but not the block
        probe.unlink()
    except OSError as error:
        raise ConfigError(_reason(error), where=str(home.root), fix=_fix(error)) from None
    return home


def _check_version(marker: Path) -> None:
    text = marker.read_text(encoding="ascii", errors="replace").strip()
    if not text.isdigit():
        fix = "restore the file or move .sia away"
        raise ConfigError(f"unreadable version {text[:40]!r}", where=str(marker), fix=fix)
    if int(text) > VERSION:
        raise ConfigError(
            f"state of version {text}, this program knows up to {VERSION}",
            where=str(marker),
            fix="use the newer SIA that wrote it, or set SIA_HOME to another directory",
        )


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "no space left for the state directory"
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return "the state directory can't be written"
    return f"the state directory can't be used ({error.strerror})"


def _fix(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "free some space, or set SIA_HOME to a directory on another disk"
    return "set SIA_HOME to a directory that you can write"
