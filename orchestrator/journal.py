"""Journals: the ordered, hash-chained record of what one engine line was asked and answered (docs: evidence)."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from orchestrator.errors import Failed, UsageError
from orchestrator.exchanges import ExchangeStore, Stored
from orchestrator.protocol import EngineUsage, Request, Turn

_HEAD_EVERY = 32  # entries; how far the head, and what a power cut leaves, may lag behind while a journal is open


@dataclass(frozen=True)
class Asked:
    """A request as the broker took it. `size` and `sha256` are those of the bytes; texts are only kept of inferences.

    Of a request that was refused, `head` holds the first 4,000 characters. Of a token count, `prompt` is the
    `prompt_hash` of what the engine was asked; journals of before that was recorded have none.
    """

    size: int
    sha256: str
    system: str = ""
    schema: str = ""
    context: str | None = None
    turns: tuple[Turn, ...] = ()
    prefix: str = ""
    head: str = ""
    seed: int | None = None
    max_tokens: int | None = None
    prompt: str = ""


@dataclass(frozen=True)
class Exchange:
    """One request and what was given back. `reply` is what the instance got, whole or cut off by `error`.

    `kind`: infer, count, limit or refused (not a valid request). `time`: Unix seconds when the request was complete;
    `seconds` until the reply was. `error`: `code message` as the instance got it, else None. `n` counts from 1.
    """

    n: int
    time: float
    kind: Literal["infer", "count", "limit", "refused"]
    asked: Asked
    reply: str
    seconds: float
    finish: str = "stop"
    usage: EngineUsage | None = None
    error: str | None = None


@dataclass(frozen=True)
class Verification:
    """What `Journal.verify` found. `problem` is None where every hash fits; `covered` entries are under the head.

    `collected`: when a person had its texts removed (Unix seconds); then only records and chain could be checked.
    """

    entries: int
    covered: int
    sealed: bool
    problem: str | None
    collected: float | None = None


@dataclass
class Journal:
    """An open journal. `append` from one thread at a time; reading is free."""

    store: ExchangeStore
    id: str
    meta: Mapping[str, Any]
    created: float
    entries: int
    head: str
    sealed: float | None = None
    timeless: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def create(cls, store: ExchangeStore, id: str, meta: Mapping[str, Any], *, timeless: bool = False) -> Journal:
        """A new journal. If `id` is taken (by a run that was cut off) it is called `id~2` and so on: see `.id`.

        `timeless`: times and durations are written as 0, so that tests can compare two runs byte by byte.
        """
        created, text, name, number = 0.0 if timeless else time.time(), _canonical(dict(meta)), id, 1
        while True:
            head = _start(name, created, text)
            try:
                with store.lock:
                    if store.last(name) is None:  # entries whose row a power cut took belong to another journal
                        values = (name, created, text, head)
                        store.heads.execute("INSERT INTO journal VALUES (?, ?, ?, 0, ?, NULL)", values)
                        return cls(store, name, meta, created, 0, head, timeless=timeless)
            except sqlite3.IntegrityError:
                pass
            except sqlite3.Error as error:
                raise Failed(f"the journal can't be created: {error}", where=name, fix="free disk space") from None
            number += 1
            name = f"{id}~{number}"

    @classmethod
    def open(cls, store: ExchangeStore, id: str) -> Journal:
        """An existing journal, with all entries that were written. Raises UsageError if there is none."""
        with store.lock:
            row = store.heads.execute("SELECT * FROM journal WHERE id = ?", (id,)).fetchone()
        if row is None:
            raise UsageError(f"no journal {id!r}", fix="`sia campaign show ID` names the trials")
        return cls(store, id, json.loads(row["meta"]), row["created"], row["entries"], row["head"], row["sealed"])

    @staticmethod
    def names(store: ExchangeStore) -> list[tuple[str, dict[str, Any]]]:
        """Ids and metas of all journals, oldest first."""
        with store.lock:
            rows = store.heads.execute("SELECT id, meta FROM journal ORDER BY created").fetchall()
        return [(row["id"], json.loads(row["meta"])) for row in rows]

    def append(self, exchange: Exchange) -> None:
        """Write one entry; it survives the death of this process. `exchange.n` must be `entries + 1`."""
        with self._lock:
            if self.sealed is not None:
                raise Failed("the journal is sealed", where=self.id)
            texts: list[bytes] = []
            exchange = replace(exchange, time=0.0, seconds=0.0) if self.timeless else exchange
            record = _canonical(_record(exchange, self.head, texts)).encode()
            digest = hashlib.sha256(record).digest()
            self.store.append(self.id, Stored(exchange.n, record, digest), texts)
            self.entries, self.head = exchange.n, digest.hex()
            if self.entries % _HEAD_EVERY == 0:
                self._secure(None)

    def sync(self) -> None:
        """Everything that was appended survives a power cut from here on: call before anything durable rests on it."""
        with self._lock:
            if self.sealed is None:
                self._secure(None)

    def seal(self) -> str:
        """No entry comes after this; entries and head are durable. Returns the head."""
        with self._lock:
            if self.sealed is None:
                self.sealed = time.time()
                self._secure(self.sealed)
            return self.head

    def _secure(self, sealed: float | None) -> None:
        """Entries first: `sia.db` is flushed by whoever writes to it, and a head over entries that a power cut took
        would look as if somebody had removed them."""
        try:
            self.store.sync()
            self._write_head(sealed)
        except sqlite3.Error as error:
            what = f"the journal can't be {'sealed' if sealed else 'written'}: {error}"
            raise Failed(what, where=self.id, fix="free disk space") from None

    def _write_head(self, sealed: float | None) -> None:
        with self.store.lock:
            heads = self.store.heads
            heads.execute(f"PRAGMA synchronous={'FULL' if sealed else 'NORMAL'}")
            values = (self.entries, self.head, sealed, self.id)
            heads.execute("UPDATE journal SET entries = ?, head = ?, sealed = ? WHERE id = ?", values)
            heads.execute("PRAGMA synchronous=NORMAL")

    def __iter__(self) -> Iterator[Exchange]:
        """All exchanges with their texts. Raises Failed where a text is missing or was altered."""
        for stored in self.store.entries(self.id):
            yield self._exchange(stored, full=True)

    def get(self, number: int) -> Exchange | None:
        """One exchange by its number, with its texts; None if there is none."""
        stored = next(self.store.entries(self.id, number - 1), None)
        return self._exchange(stored, full=True) if stored and stored.n == number else None

    def replies(self) -> Iterator[Exchange]:
        """All exchanges without the requests' texts (those are empty): cheap."""
        for stored in self.store.entries(self.id):
            yield self._exchange(stored, full=False)

    def verify(self) -> Verification:
        """Recompute every hash: records, chain, texts, and the head in the database."""
        self.store.forget()
        collected = self.store.collected(self.id)
        previous, count = _start(self.id, self.created, _canonical(dict(self.meta))), 0
        covered: int | None = None if self.entries else 0
        problem = None if self.entries or self.head == previous else "the head does not fit the journal's beginning"
        for stored in self.store.entries(self.id):
            count += 1
            problem = problem or self._check(stored, previous, count, texts=collected is None)
            previous = hashlib.sha256(stored.record).hexdigest()
            if count == self.entries:
                covered = count
                if previous != self.head:
                    problem = problem or f"the head in the database does not fit entry {count}"
        if covered is None:
            problem = problem or f"{self.entries} entries are under the head, {count} are there"
        if self.sealed is not None and count > self.entries:
            problem = problem or f"{count - self.entries} entries came after the seal"
        return Verification(count, covered or 0, self.sealed is not None, problem, collected)

    def _check(self, stored: Stored, previous: str, number: int, *, texts: bool) -> str | None:
        if stored.n != number:
            return f"entry {number} is missing"
        if hashlib.sha256(stored.record).digest() != stored.hash:
            return f"entry {number} was altered"
        try:
            if json.loads(stored.record)["prev"] != previous:
                return f"entry {number} does not follow the one before it"
            if texts:
                self._exchange(stored, full=True)
        except Failed as error:
            return f"entry {number}: {error.what}"
        except (ValueError, KeyError, TypeError):
            return f"entry {number} can't be read"
        return None

    def _exchange(self, stored: Stored, *, full: bool) -> Exchange:
        try:
            return self._read(stored, full=full)
        except Failed:
            when = self.store.collected(self.id)
            if when is None:
                raise
            day = time.strftime("%Y-%m-%d", time.localtime(when))
            what = f"the texts of this journal were removed by `sia gc --evidence` on {day}"
            fix = f"`sia log verify {self.id}` still checks its chain of hashes"
            raise Failed(what, where=self.id, fix=fix) from None

    def _read(self, stored: Stored, *, full: bool) -> Exchange:
        record = json.loads(stored.record)
        asked = record["asked"]

        def text(name: str | None) -> str:
            return self.store.text(bytes.fromhex(name)).decode() if name and full else ""

        turns = tuple(Turn(role, text(name)) for role, name in asked.get("turns", ()))
        return Exchange(
            n=record["n"],
            time=record["time"],
            kind=record["kind"],
            asked=Asked(
                size=asked["size"],
                sha256=asked["sha256"],
                system=text(asked.get("system")),
                schema=text(asked.get("schema")),
                context=text(asked["context"]) if "context" in asked else None,
                turns=turns,
                prefix=self.store.text(bytes.fromhex(asked["prefix"])).decode() if "prefix" in asked else "",
                head=text(asked.get("head")),
                seed=asked.get("seed"),
                max_tokens=asked.get("max_tokens"),
                prompt=asked.get("prompt", ""),
            ),
            reply=self.store.text(bytes.fromhex(record["reply"])).decode(),
            seconds=record["seconds"],
            finish=record["finish"],
            usage=EngineUsage(**record["usage"]) if record["usage"] is not None else None,
            error=record["error"],
        )


def text_hash(text: str) -> str:
    """The name of a text in the store: its sha256, hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def prompt_hash(asked: Asked | Request) -> str:
    """The name of a prompt: the sha256 (hex) over its schema, system text, context or turns, and prefix.

    The same prompt has the same name however its request was written, and whether it is counted or answered.
    """
    turns = [[turn.role, turn.text] for turn in asked.turns]
    parts = [asked.schema.strip(), asked.system, asked.context, turns, asked.prefix]
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode()).hexdigest()


def _record(exchange: Exchange, previous: str, texts: list[bytes]) -> dict[str, Any]:
    def keep(text: str) -> str:
        encoded = text.encode()
        texts.append(encoded)
        return hashlib.sha256(encoded).hexdigest()

    given = exchange.asked
    asked: dict[str, Any] = {"size": given.size, "sha256": given.sha256}
    for name in ("system", "schema", "prefix", "head"):
        if value := getattr(given, name):
            asked[name] = keep(value)
    if given.context is not None:
        asked["context"] = keep(given.context)
    if given.turns:
        asked["turns"] = [[turn.role, keep(turn.text)] for turn in given.turns]
    for name in ("seed", "max_tokens"):
        if (number := getattr(given, name)) is not None:
            asked[name] = number
    if given.prompt:
        asked["prompt"] = given.prompt
    usage = exchange.usage
    return {
        "n": exchange.n,
        "prev": previous,
        "time": exchange.time,
        "kind": exchange.kind,
        "asked": asked,
        "reply": keep(exchange.reply),
        "seconds": round(exchange.seconds, 6),
        "finish": exchange.finish,
        "usage": None
        if usage is None
        else {name: getattr(usage, name) for name in ("prompt", "completion", "cached", "cost", "finish")},
        "error": exchange.error,
    }


def _canonical(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=True, sort_keys=True, separators=(",", ":"))


def _start(id: str, created: float, meta: str) -> str:
    return hashlib.sha256(_canonical({"id": id, "created": created, "meta": meta}).encode()).hexdigest()
