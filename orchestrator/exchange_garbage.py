"""Removing contexts and answers of campaigns from the exchange store. Their chains of hashes stay, and say what was."""

from __future__ import annotations

import json
import sqlite3
import struct
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from orchestrator import database
from orchestrator.exchanges import ExchangeStore

if TYPE_CHECKING:
    from orchestrator.home import Home

_NOT_KEPT = "(SELECT id FROM temp.journal_gone)"


def collect(home: Home, campaigns: Sequence[str], *, dry_run: bool) -> int:
    """Remove every text that no journal but those of these campaigns' trials names; returns its bytes in the store.

    Only while nothing else may write to the store: writers remember which pieces they have written. Entries stay, so
    `Journal.verify` still proves the chain, and that a copy kept elsewhere is the right one. All goes, or nothing.
    """
    with closing(ExchangeStore(home.exchanges, home.database)) as store, store.lock:
        connection = store.connection
        journals = _journals(store, campaigns)
        if not journals:
            return 0
        with database.transaction(connection):
            for table in ("journal_gone (id TEXT", "text_kept (id BLOB", "chunk_kept (id INTEGER"):
                connection.execute(f"CREATE TEMP TABLE {table} PRIMARY KEY)")
            connection.executemany("INSERT INTO temp.journal_gone VALUES (?)", ((name,) for name in journals))
            _mark(connection)
            freed = _bytes(connection)
            if not dry_run:
                _delete(connection, journals)
            for table in ("journal_gone", "text_kept", "chunk_kept"):
                connection.execute(f"DROP TABLE temp.{table}")
        if freed and not dry_run:
            connection.execute("VACUUM")  # gives the space back to the disk; without it, only to later texts
            store.forget()
    return freed


def _journals(store: ExchangeStore, campaigns: Sequence[str]) -> list[str]:
    """Journals of these campaigns' trials that still have their texts."""
    rows = store.heads.execute("SELECT id, meta FROM journal").fetchall()
    found = [row["id"] for row in rows if json.loads(row["meta"]).get("campaign") in set(campaigns)]
    return [name for name in found if store.collected(name) is None]


def _mark(connection: sqlite3.Connection) -> None:
    """Texts and chunks that other journals name, in temporary tables: memory stays flat however long they are."""
    records = connection.execute(f"SELECT record FROM entry WHERE journal NOT IN {_NOT_KEPT}")
    insert = "INSERT OR IGNORE INTO temp.text_kept VALUES (?)"
    for (record,) in records:
        connection.executemany(insert, ((bytes.fromhex(name),) for name in named(json.loads(record))))
    texts = connection.execute("SELECT chunks FROM text WHERE hash IN (SELECT id FROM temp.text_kept)")
    for (chunks,) in texts:
        numbers = struct.unpack(f"<{len(chunks) // 8}Q", chunks)
        connection.executemany("INSERT OR IGNORE INTO temp.chunk_kept VALUES (?)", ((number,) for number in numbers))


def named(record: dict[str, Any]) -> Iterator[str]:
    """The hashes of all texts that a journal's record names (hex)."""
    asked = record["asked"]
    yield record["reply"]
    for name in ("system", "schema", "context", "prefix", "head"):
        if name in asked:
            yield asked[name]
    for _, text in asked.get("turns", ()):
        yield text


_GONE = {
    "text": "FROM text WHERE hash NOT IN (SELECT id FROM temp.text_kept)",
    "chunk": "FROM chunk WHERE id NOT IN (SELECT id FROM temp.chunk_kept)",
}


def _bytes(connection: sqlite3.Connection) -> int:
    texts = connection.execute(f"SELECT coalesce(sum(32 + length(chunks)), 0) {_GONE['text']}").fetchone()[0]
    chunks = connection.execute(f"SELECT coalesce(sum(40 + length(data)), 0) {_GONE['chunk']}").fetchone()[0]
    return int(texts + chunks)


def _delete(connection: sqlite3.Connection, journals: Sequence[str]) -> None:
    connection.execute(f"DELETE {_GONE['text']}")
    connection.execute(f"DELETE {_GONE['chunk']}")
    connection.execute("CREATE TABLE IF NOT EXISTS collected (journal TEXT PRIMARY KEY, time REAL NOT NULL)")
    now = time.time()
    connection.executemany("INSERT INTO collected VALUES (?, ?)", ((name, now) for name in journals))
