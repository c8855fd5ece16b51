"""What the ledger is read as: plain values."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass


@dataclass(frozen=True)
class Generation:
    """A commit that runs or ran as main. `tree` is the verified hash of its agent paths."""

    number: int
    commit: str
    tree: str
    parent: int | None
    candidate: str
    campaign: str | None
    accepted: str | None
    created: float
    state: str
    cause: str | None


@dataclass(frozen=True)
class Promotion:
    """A change of main from generation `old` to `new_commit`: by a verdict, or back by a person (`kind` rollback)."""

    id: int
    kind: str
    candidate: str
    campaign: str | None
    accepted: str | None
    approved: str | None
    old: int
    new: int | None
    old_commit: str
    new_commit: str
    tree: str
    with_state: bool
    nonce: str
    tries: int
    launches: int
    given_back: bool
    frozen: tuple[int, ...] | None
    base: tuple[int, ...] | None
    stdin_offset: int | None
    created: float
    finished: float | None
    outcome: str | None
    cause: str | None


@dataclass(frozen=True)
class Standing:
    """The ledger's one row, with what it names."""

    state: str
    generation: Generation
    last_good: Generation
    promotion: Promotion | None
    probation: bool
    crashes: int
    cause: str | None


@dataclass(frozen=True)
class Data:
    """Durable data of main: frozen levels (bottom first), the level written now, bytes of messages it holds."""

    stack: tuple[int, ...]
    upper: int
    stdin_offset: int


def promotion_of(row: sqlite3.Row) -> Promotion:
    """A row of the table `promotion`."""
    values = dict(row)
    for name in ("frozen", "base"):
        values[name] = None if values[name] is None else tuple(json.loads(values[name]))
    for name in ("with_state", "given_back"):
        values[name] = bool(values[name])
    return Promotion(**values)
