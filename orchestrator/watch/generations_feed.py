"""The ledger of generations, and what each promotion changed in the code."""

from __future__ import annotations

import sqlite3
import threading
from dataclasses import dataclass

from orchestrator import database
from orchestrator.errors import ConfigError, Failed
from orchestrator.generations import Ledger
from orchestrator.gitio import Git, GitError
from orchestrator.home import Home
from orchestrator.ledger_values import Generation, Promotion, Standing
from orchestrator.untrusted import one_line, printable

DIFF_BYTES = 1 << 20
DIFF_LINES = 10_000
LINE = 2000  # characters of a line that are shown
SECONDS = 20.0  # that git may take
_PLAIN = ("--no-color", "--no-ext-diff", "--no-textconv", "--no-renames", "--ignore-submodules=all")


@dataclass(frozen=True)
class FileChange:
    """One file of a diff. `path` is harmless text. `added`, `removed`: lines; None = binary."""

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
        self._home = home
        self._db: sqlite3.Connection | None = None
        self._version: int | None = None
        self._now = GenerationsNow(0, None, (), ())
        self._known: dict[tuple[str, str], CodeChange] = {}

    def poll(self) -> GenerationsNow:
        """The present state. Raises ConfigError where the database can't be read."""
        try:
            self._read()
        except sqlite3.Error as error:
            self.close()
            fix = "restore the file, or use the SIA version that wrote it"
            raise ConfigError(f"the database can't be read: {error}", where=str(self._home.database), fix=fix) from None
        return self._now

    def change(self, number: int, against: int | None = None) -> CodeChange | None:
        """What generation `number` changed against its parent (or `against`); None where it has none.

        Runs git, so it takes a moment: once for each pair, then it is remembered. Raises GitError, Failed.
        """
        by_number = {one.number: one for one in self.poll().generations}
        new = by_number.get(number)
        if new is None:
            raise Failed(f"there is no generation {number}", where="ledger", fix="see `sia generations`")
        old = by_number.get(against if against is not None else new.parent or 0)
        return None if old is None else self.between(old.commit, new.commit)

    def between(self, old: str, new: str) -> CodeChange:
        """The same between two commits of the supervisor's repository. Raises GitError."""
        if (old, new) not in self._known:
            if len(self._known) > 32:
                self._known.pop(next(iter(self._known)))
            self._known[old, new] = code_change(Git(self._home.repository), old, new)
        return self._known[old, new]

    def close(self) -> None:
        """Release the connection."""
        if self._db is not None:
            self._db.close()
        self._db, self._version = None, None

    def _read(self) -> None:
        if self._db is None:
            self._db = database.look(self._home.database)
        if self._db is None:
            return
        version = self._db.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version:
            return
        ledger = Ledger(self._db)
        self._db.execute("BEGIN")
        try:
            standing = ledger.standing() if ledger.exists() else None
            found = (standing, tuple(reversed(ledger.generations())), tuple(reversed(ledger.promotions())))
        finally:
            self._db.execute("COMMIT")
        if found != (self._now.standing, self._now.generations, self._now.promotions):
            self._now = GenerationsNow(self._now.serial + 1, *found)
        self._version = version


def code_change(git: Git, old: str, new: str) -> CodeChange:
    """The difference of two commits. Candidates wrote it: it is capped, and made harmless. Raises GitError."""
    counted, _ = _output(git, ("diff-tree", "-r", "-z", "--numstat", *_PLAIN, old, new))
    files = []
    for piece in counted.decode("utf-8", "replace").split("\0"):
        fields = piece.split("\t", 2)
        if len(fields) == 3:
            added, removed = (int(each) if each.isdigit() else None for each in fields[:2])
            files.append(FileChange(one_line(fields[2], 300), added, removed))
    diff, cut = _output(git, ("diff-tree", "-r", "-p", *_PLAIN, old, new))
    lines = [_shown(line) for line in diff.decode("utf-8", "replace").split("\n")]
    if lines and not lines[-1]:
        lines.pop()
    return CodeChange(old, new, tuple(files), tuple(lines[:DIFF_LINES]), cut or len(lines) > DIFF_LINES)


def _shown(line: str) -> str:
    return printable(line[:LINE]).replace("\n", " ").expandtabs(4) + ("…" if len(line) > LINE else "")


def _output(git: Git, arguments: tuple[str, ...]) -> tuple[bytes, bool]:
    """What a command prints, up to a bound; and whether there was more."""
    with git.popen(*arguments) as process:
        assert process.stdout and process.stderr
        timer = threading.Timer(SECONDS, process.kill)
        timer.start()
        try:
            data = process.stdout.read(DIFF_BYTES + 1)
            cut = len(data) > DIFF_BYTES
            if cut:
                process.kill()
            said = process.stderr.read(10_000).decode("utf-8", "replace")
            code = process.wait()
        finally:
            timer.cancel()
    if code and not cut:
        raise GitError(arguments[0], code, said, str(git.directory))
    return data[:DIFF_BYTES], cut
