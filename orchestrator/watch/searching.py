"""Searching a journal: every piece of text is unpacked and looked at once, however many contexts show it."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from orchestrator.exchanges import ExchangeStore

_END = re.compile(rb"</[\w.-]{1,60}>\Z")  # of the context: it lies in one piece with the last entry
_END_BYTES = 63  # at most


@dataclass(frozen=True)
class _Piece:
    """What is remembered of a chunk: whether it has the text, and its edges, for a text that lies across two."""

    hit: bool
    head: bytes
    tail: bytes


class Searcher:
    """Looks for one text in the exchanges of one journal. Upper and lower case of ASCII are the same."""

    def __init__(self, store: ExchangeStore, journal: str, wanted: str) -> None:
        self.wanted = wanted
        self._store, self._journal = store, journal
        self._bytes = wanted.encode("utf-8", "replace").lower()
        self._pieces: dict[int, _Piece] = {}
        self._chunks: dict[int, tuple[int, ...]] = {}  # of the contexts of a few entries

    def found(self, entry: int, before: int | None) -> bool:
        """Whether the answer, the error, or what the context shows that entry `before` did not, has the text."""
        record = self._record(entry)
        if record is None:
            return False
        if self._bytes in (record["error"] or "").encode("utf-8", "replace").lower():
            return True
        if self._in(self._store.chunks(bytes.fromhex(record["reply"])), ()):
            return True
        return self._in(self._context(entry), self._context(before) if before is not None else ())

    def _record(self, entry: int) -> dict[str, Any] | None:
        stored = self._store.get(self._journal, entry)
        return json.loads(stored.record) if stored else None

    def _context(self, entry: int) -> tuple[int, ...]:
        """Chunks of what was shown: the context, or all turns; of a refused request its beginning."""
        if entry not in self._chunks:
            while len(self._chunks) > 4:
                self._chunks.pop(next(iter(self._chunks)))
            record = self._record(entry)
            asked = record["asked"] if record else {}
            names = [asked.get("context"), asked.get("head"), *(name for _, name in asked.get("turns", ()))]
            self._chunks[entry] = tuple(
                number for name in names if name for number in self._store.chunks(bytes.fromhex(name))
            )
        return self._chunks[entry]

    def _in(self, chunks: tuple[int, ...], before: tuple[int, ...]) -> bool:
        edge, known = b"", frozenset(before)
        for number in chunks:
            piece = self._piece(number)
            found = number not in known and (piece.hit or self._bytes in edge + piece.head)
            if found and not (before and self._was_last(number, before[-1])):
                return True
            edge = (edge + piece.tail)[-len(self._bytes) + 1 :] if len(self._bytes) > 1 else b""
        return False

    def _was_last(self, number: int, last: int) -> bool:
        """Whether a piece is the last one of the context before, which only had the context's end behind it."""
        one, two = self._store.chunk(number), self._store.chunk(last)
        return one.rstrip() == _without_end(two) or _without_end(one) == _without_end(two)

    def _piece(self, number: int) -> _Piece:
        piece = self._pieces.get(number)
        if piece is None:
            data, size = self._store.chunk(number).lower(), len(self._bytes) - 1
            piece = _Piece(self._bytes in data, data[:size], data[-size:] if size else b"")
            self._pieces[number] = piece
        return piece


def _without_end(piece: bytes) -> bytes:
    """A piece without the context's end and the space around it; one that does not end so, as it is."""
    kept = piece.rstrip()
    end = _END.search(kept[-_END_BYTES:])
    return kept[: len(kept) - len(end[0])].rstrip() if end else piece
