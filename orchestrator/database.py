"""The SQLite database: connection settings, numbered migrations, transactions."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orchestrator.errors import ConfigError

MIGRATIONS = Path(__file__).parent / "migrations"


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open the database, creating and migrating it unless `read_only`.

    Autocommit mode: a statement outside `transaction` is its own transaction. Rows are `sqlite3.Row`. Safe to use from
    several threads only with one connection each. Raises ConfigError when the file is damaged, locked for more than
    30 s, or newer than this program; a damaged database is never replaced by an empty one.
    """
    try:
        uri = f"{path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
        connection = sqlite3.connect(uri, uri=True, timeout=30, isolation_level=None, check_same_thread=False)
        connection.row_factory = sqlite3.Row
        connection.execute("PRAGMA foreign_keys=ON")
        if not read_only:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=FULL")
            migrate(connection, path)
    except sqlite3.DatabaseError as error:
        raise ConfigError(
            f"the database can't be used: {error}",
            where=str(path),
            fix="free disk space or restore the file from a backup; it is never replaced by an empty one",
        ) from None
    return connection


def look(path: Path) -> sqlite3.Connection | None:
    """Open the database for reading; None while there is none. One of an older version is migrated first.

    Raises ConfigError where it is damaged or was written by a newer version.
    """
    if not path.exists():
        return None
    connection = connect(path, read_only=True)
    try:
        if connection.execute("PRAGMA user_version").fetchone()[0] != _steps()[-1][0]:
            connect(path).close()
    except sqlite3.Error as error:
        connection.close()
        fix = "restore the file, or use the SIA version that wrote it"
        raise ConfigError(f"the database can't be read: {error}", where=str(path), fix=fix) from None
    except ConfigError:
        connection.close()
        raise
    return connection


def _steps() -> list[tuple[int, Path]]:
    """The migrations by number."""
    return sorted((int(file.name.partition("_")[0]), file) for file in MIGRATIONS.glob("[0-9]*.sql"))


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Apply the migrations that `PRAGMA user_version` does not count yet, each in a transaction of its own."""
    steps = _steps()
    newest = steps[-1][0]
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > newest:
        raise ConfigError(
            f"database of version {version}, this program knows up to {newest}",
            where=str(path),
            fix="use the newer SIA that wrote it",
        )
    for number, file in steps:
        if number > version:
            script = file.read_text(encoding="utf-8")
            with transaction(connection):
                if connection.execute("PRAGMA user_version").fetchone()[0] >= number:
                    continue  # another process was faster
                for statement in _statements(script):
                    connection.execute(statement)
                connection.execute(f"PRAGMA user_version={number}")


def _statements(script: str) -> Iterator[str]:
    buffer = ""
    for line in script.splitlines(keepends=True):
        buffer += line
        if sqlite3.complete_statement(buffer):
            yield buffer
            buffer = ""


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """BEGIN IMMEDIATE … COMMIT, or ROLLBACK if the block raises. Not nestable."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        if connection.in_transaction:  # a full disk has rolled back already
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
