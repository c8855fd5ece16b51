"""The exchange store: what was asked and answered, by hash, each piece once. One SQLite file for all journals.

A text is cut into chunks at the top-level entries of a context, so consecutive contexts share nearly everything. The
connection commits into the write-ahead log without fsync: a commit survives the death of the process at once, and a
power cut from the next `sync` on (a torn end of the log is dropped by SQLite, whole transactions at a time).
"""

from __future__ import annotations

import hashlib
import itertools
import re
import sqlite3
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import zstandard

from orchestrator import database
from orchestrator.errors import ConfigError, Failed

FORMAT = 1
_SCHEMA = """
CREATE TABLE chunk (id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, packed INTEGER NOT NULL, data BLOB NOT NULL);
CREATE TABLE text (hash BLOB PRIMARY KEY, chunks BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE entry (
    journal TEXT NOT NULL, n INTEGER NOT NULL, hash BLOB NOT NULL, record BLOB NOT NULL, PRIMARY KEY (journal, n)
) WITHOUT ROWID;
CREATE TABLE synced (count INTEGER NOT NULL);
INSERT INTO synced VALUES (0)"""
_ENTRY_START = re.compile(rb'\n(?=<[A-Za-z_][\w.-]{0,60}\s[^<>]{0,300}\bid=["\'])')
_CHUNK = 64 * 1024
_MANY_ENTRIES = 2048  # in one text; where there are more, and small ones, they share chunks: each chunk takes a moment
_LEAST = 4096  # bytes of a chunk then
_PACK_FROM = 160  # bytes; below it a zstd frame saves nothing
_REMEMBERED = 8192  # chunks whose row is known without asking, per process
_LIMIT = 64 * 1024 * 1024  # no chunk unpacks to more


@dataclass(frozen=True)
class Stored:
    """One journal entry as it lies in the store: the record's bytes and their hash."""

    n: int
    record: bytes
    hash: bytes


def cut(text: bytes) -> list[bytes]:
    """The chunks of a text; joined they are the text."""
    starts = [match.end() for match in _ENTRY_START.finditer(text)]
    if len(starts) > _MANY_ENTRIES + len(text) // _LEAST:
        starts = _far_apart(starts)
    edges = [0, *starts, len(text)]
    chunks = []
    for start, end in itertools.pairwise(edges):
        chunks += [text[at : min(at + _CHUNK, end)] for at in range(start, end, _CHUNK)]
    return chunks


def _far_apart(starts: list[int]) -> list[int]:
    kept, last = [], 0
    for start in starts:
        if start - last >= _LEAST:
            kept.append(start)
            last = start
    return kept


class ExchangeStore:
    """Texts and journal entries. Thread-safe; several processes may have it open.

    `database` is the `sia.db` that holds the journals' heads (default: beside `directory`). With `read_only` nothing is
    created, migrated or written: for those who only look.
    """

    def __init__(self, directory: Path, database_path: Path | None = None, *, read_only: bool = False) -> None:
        self.path = directory / "exchanges.db"
        self._lock = threading.RLock()
        self._packer = zstandard.ZstdCompressor(level=3)
        self._unpacker = zstandard.ZstdDecompressor()
        self._rows: OrderedDict[bytes, int] = OrderedDict()
        self._read: OrderedDict[int, bytes] = OrderedDict()
        heads = database_path or directory.parent / "sia.db"
        if read_only:
            self._connection = database.connect(self.path, read_only=True)
            self.heads = database.connect(heads, read_only=True)
            return
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            what = f"the exchange store can't be created ({error.strerror})"
            raise ConfigError(what, where=str(directory), fix="free disk space or make it writable") from None
        self._connection = _open(self.path)
        self.heads = database.connect(heads)
        self.heads.execute("PRAGMA synchronous=NORMAL")

    def close(self) -> None:
        """Close both databases."""
        with self._lock:
            self._connection.close()
            self.heads.close()

    @property
    def lock(self) -> threading.RLock:
        """Held around every use of the connections."""
        return self._lock

    @property
    def connection(self) -> sqlite3.Connection:
        """To the store's own file; use it under `lock`."""
        return self._connection

    def collected(self, journal: str) -> float | None:
        """When texts of this journal were removed because a person asked for it (`sia gc --evidence`), or None."""
        with self._lock:
            try:
                row = self._connection.execute("SELECT time FROM collected WHERE journal = ?", (journal,)).fetchone()
            except sqlite3.OperationalError:
                return None  # the table is made by the first collection
        return float(row[0]) if row else None

    def append(self, journal: str, entry: Stored, texts: Sequence[bytes]) -> None:
        """One entry and the texts that it names, whole or not at all. Raises Failed if it can't be written."""
        with self._lock:
            new: dict[bytes, int] = {}
            try:
                with database.transaction(self._connection) as connection:
                    for text in texts:
                        self._put(connection, text, new)
                    connection.execute(
                        "INSERT INTO entry VALUES (?, ?, ?, ?)", (journal, entry.n, entry.hash, entry.record)
                    )
            except sqlite3.Error as error:
                raise Failed(
                    f"the journal can't be written: {error}", where=str(self.path), fix="free disk space"
                ) from None
            self._rows.update(new)
            while len(self._rows) > _REMEMBERED:
                self._rows.popitem(last=False)

    def _put(self, connection: sqlite3.Connection, text: bytes, new: dict[bytes, int]) -> None:
        digest = hashlib.sha256(text).digest()
        if connection.execute("SELECT 1 FROM text WHERE hash = ?", (digest,)).fetchone():
            return
        rows = [self._chunk(connection, chunk, new) for chunk in cut(text)]
        connection.execute("INSERT INTO text VALUES (?, ?)", (digest, struct.pack(f"<{len(rows)}Q", *rows)))

    def _chunk(self, connection: sqlite3.Connection, chunk: bytes, new: dict[bytes, int]) -> int:
        digest = hashlib.sha256(chunk).digest()
        known = new.get(digest) or self._rows.get(digest)
        if known is None:
            row = connection.execute("SELECT id FROM chunk WHERE hash = ?", (digest,)).fetchone()
            known = row[0] if row else None
        if known is None:
            packed = self._packer.compress(chunk) if len(chunk) >= _PACK_FROM else chunk
            small = len(packed) < len(chunk)
            cursor = connection.execute(
                "INSERT INTO chunk (hash, packed, data) VALUES (?, ?, ?)", (digest, small, packed if small else chunk)
            )
            known = int(cursor.lastrowid or 0)
        new[digest] = known
        return known

    def text(self, digest: bytes) -> bytes:
        """The text with this sha256. Raises Failed if it is missing or not what its hash says."""
        with self._lock:
            row = self._connection.execute("SELECT chunks FROM text WHERE hash = ?", (digest,)).fetchone()
            if row is None:
                raise Failed(
                    f"text {digest.hex()[:16]} is missing", where=str(self.path), fix="restore it from a backup"
                )
            numbers = struct.unpack(f"<{len(row[0]) // 8}Q", row[0])
            text = b"".join(self._load(number) for number in numbers)
            if hashlib.sha256(text).digest() != digest:  # what we remember may have been collected, its number reused
                self._read.clear()
                text = b"".join(self._load(number) for number in numbers)
        if hashlib.sha256(text).digest() != digest:
            raise Failed(f"text {digest.hex()[:16]} was altered", where=str(self.path), fix="restore it from a backup")
        return text

    def _load(self, number: int) -> bytes:
        if number in self._read:
            self._read.move_to_end(number)
            return self._read[number]
        row = self._connection.execute("SELECT packed, data FROM chunk WHERE id = ?", (number,)).fetchone()
        if row is None:
            return b""  # the text's hash will not fit
        try:
            data = self._unpacker.decompress(row[1], max_output_size=_LIMIT) if row[0] else bytes(row[1])
        except zstandard.ZstdError:
            return b""
        self._read[number] = data
        while len(self._read) > 256:
            self._read.popitem(last=False)
        return data

    def forget(self) -> None:
        """Read everything from the disk again."""
        with self._lock:
            self._read.clear()

    def entries(self, journal: str, after: int = 0) -> Iterator[Stored]:
        """A journal's entries with numbers above `after`, in order; fetched in portions, so it may grow meanwhile."""
        while True:
            with self._lock:
                rows = self._connection.execute(
                    "SELECT n, record, hash FROM entry WHERE journal = ? AND n > ? ORDER BY n LIMIT 200",
                    (journal, after),
                ).fetchall()
            if not rows:
                return
            for row in rows:
                yield Stored(row[0], bytes(row[1]), bytes(row[2]))
            after = rows[-1][0]

    def get(self, journal: str, number: int) -> Stored | None:
        """One entry of a journal."""
        with self._lock:
            query = "SELECT n, record, hash FROM entry WHERE journal = ? AND n = ?"
            row = self._connection.execute(query, (journal, number)).fetchone()
        return Stored(row[0], bytes(row[1]), bytes(row[2])) if row else None

    def chunks(self, digest: bytes) -> tuple[int, ...]:
        """The numbers of a text's chunks, in order: what two texts share has the same ones. () if it is missing."""
        with self._lock:
            row = self._connection.execute("SELECT chunks FROM text WHERE hash = ?", (digest,)).fetchone()
        return struct.unpack(f"<{len(row[0]) // 8}Q", row[0]) if row else ()

    def chunk(self, number: int) -> bytes:
        """One chunk, not checked against any hash: for looking."""
        with self._lock:
            return self._load(number)

    def beginning(self, digest: bytes, size: int) -> bytes:
        """The first `size` bytes of a text, not checked against its hash: for looking."""
        found = b""
        for number in self.chunks(digest):
            found += self.chunk(number)
            if len(found) >= size:
                break
        return found[:size]

    def last(self, journal: str) -> Stored | None:
        """The newest entry of a journal."""
        with self._lock:
            row = self._connection.execute(
                "SELECT n, record, hash FROM entry WHERE journal = ? ORDER BY n DESC LIMIT 1", (journal,)
            ).fetchone()
        return Stored(row[0], bytes(row[1]), bytes(row[2])) if row else None

    def sync(self) -> None:
        """Everything appended so far survives a power cut from here on."""
        with self._lock:
            self._connection.execute("PRAGMA synchronous=FULL")
            try:  # a commit that writes something flushes the log, and with it all commits before
                self._connection.execute("UPDATE synced SET count = count + 1")
            finally:
                self._connection.execute("PRAGMA synchronous=NORMAL")


def _open(path: Path) -> sqlite3.Connection:
    try:
        connection = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")
        if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
            with database.transaction(connection):
                if connection.execute("PRAGMA user_version").fetchone()[0] == 0:
                    for statement in _SCHEMA.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version={FORMAT}")
        version = connection.execute("PRAGMA user_version").fetchone()[0]
    except sqlite3.Error as error:
        fix = "free disk space or restore the file from a backup; it is never replaced by an empty one"
        raise ConfigError(f"the exchange store can't be used: {error}", where=str(path), fix=fix) from None
    if version > FORMAT:
        what = f"exchange store of version {version}, this program knows up to {FORMAT}"
        raise ConfigError(what, where=str(path), fix="use the newer SIA that wrote it")
    return connection
