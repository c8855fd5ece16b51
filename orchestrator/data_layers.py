"""Durable data of the main instance (/root/data and /app): numbered levels, each an upper that becomes a lower layer.

A level lies in `.sia/main/levels/N/{data,app}/upper`, by a link to a neutral place (`neutral.py`). Freezing it is one
row in the ledger (its number moves to the stack), nothing is renamed, so a kill at any moment leaves either the old
stack or the new one. Levels are written by instances: they are only ever mounted as overlay layers, last.
"""

from __future__ import annotations

import ctypes
import json
import os
import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import neutral
from orchestrator.database import transaction
from orchestrator.generations import Data, Ledger
from orchestrator.home import Home
from orchestrator.instances import skeletons
from sandbox.spec import Overlay

if TYPE_CHECKING:
    from sandbox.host import Host

DESTINATIONS = {"app": "/app", "data": "/root/data"}  # in the order of a trial: its workdir first
FLATTEN_ABOVE = 12  # levels in the stack; mount options hold 4096 bytes, 100 lowers failed, and each costs lookups
NAMES = {"app": neutral.APP, "data": neutral.DATA}  # of their directories below `Levels.make`
KEEP_ASIDE = 5  # levels of the last launches that were dropped, for a look


@dataclass(frozen=True)
class Levels:
    """The directories of all levels below one home."""

    home: Home

    @property
    def root(self) -> Path:
        return self.home.main / "levels"

    def upper(self, level: int, name: str) -> Path:
        """Where level `level` of `name` ('data' or 'app') keeps its files: what the link in its directory leads to."""
        return (self.root / str(level) / name).resolve() / "upper"

    def lowers(self, stack: tuple[int, ...], name: str) -> tuple[Path, ...]:
        """The frozen layers of a stack, bottom first; a level that never was launched has none."""
        return tuple(path for level in stack if (path := self.upper(level, name)).is_dir())

    def prepare(self, host: Host, data: Data) -> tuple[Overlay, ...]:
        """Overlays for a launch, made if missing, above the lowest layers that a trial has too.

        Safe to repeat: an existing upper is used as it is (that is how state survives a restart)."""
        overlays, shared = [], skeletons(host, self.home.root)
        lowest = {"app": shared.app, "data": shared.data}
        for name, destination in DESTINATIONS.items():
            made = self.make(data.upper)
            neutral.link(self.root / str(data.upper) / name, made / NAMES[name])
            upper = self.upper(data.upper, name)
            work = upper.with_name("work")
            if not (upper.is_dir() and work.is_dir()):
                with suppress(OSError):  # of a start that was cut off while it made them
                    upper.rmdir()
                    upper.parent.rmdir()
                upper, work = host.make_upper(made, NAMES[name])
            overlays.append(Overlay(destination, (lowest[name], *self.lowers(data.stack, name)), upper, work))
        return tuple(overlays)

    def make(self, level: int) -> Path:
        """The directory in which the uppers of a level lie, under a neutral name."""
        (self.root / str(level)).mkdir(mode=0o711, parents=True, exist_ok=True)
        made = neutral.place(self.home.root, self.root / str(level))
        made.mkdir(mode=0o711, parents=True, exist_ok=True)
        return made

    def remove(self, host: Host, level: int) -> None:
        """What was written there, and the directory with its links."""
        for name in DESTINATIONS:
            neutral.remove(host, self.root / str(level) / name)
        host.remove(neutral.place(self.home.root, self.root / str(level)))
        host.remove(self.root / str(level))


def flatten(host: Host, levels: Levels, connection: sqlite3.Connection) -> bool:
    """Join the frozen levels of a long stack into one new level. Only while no main instance runs.

    The joined level is complete and durable before the ledger names it. Returns whether anything was done.
    """
    from sandbox import layers

    ledger = Ledger(connection)
    data = ledger.data()
    if len(data.stack) <= FLATTEN_ABOVE or ledger.standing().promotion is not None:
        return False
    with transaction(connection):
        level = int(connection.execute("UPDATE main_data SET next = next + 1 RETURNING next - 1").fetchone()[0])
    for name in DESTINATIONS:
        target = levels.make(level) / NAMES[name] / "upper"
        target.parent.mkdir(mode=0o711, exist_ok=True)
        neutral.link(levels.root / str(level) / name, target.parent)
        lowers = levels.lowers(data.stack, name)
        if lowers:
            layers.flatten(host, lowers, target)
        else:
            target.mkdir()
    host.own(levels.make(level))
    _sync_file_system(levels.root)
    with transaction(connection):
        connection.execute("UPDATE main_data SET stack = ? WHERE stack = ?", (f"[{level}]", json.dumps(data.stack)))
    return True


def collect(host: Host, levels: Levels, connection: sqlite3.Connection) -> list[int]:
    """Remove levels that nothing can go back to. Returns their numbers. Only while no main instance runs."""
    removed = sorted(int(path.name) for path in unneeded(levels, connection))
    for level in removed:
        levels.remove(host, level)
    return removed


def unneeded(levels: Levels, connection: sqlite3.Connection) -> list[Path]:
    """Levels that are neither in the stack nor what a promotion or rollback can go back to, nor a recent launch's."""
    if not levels.root.is_dir():
        return []
    there = [path for path in levels.root.iterdir() if path.name.isdigit()]
    keep = _wanted(connection)
    return [path for path in there if int(path.name) not in keep]


def _wanted(connection: sqlite3.Connection) -> set[int]:
    data = Ledger(connection).data()
    keep = {*data.stack, data.upper}
    rows = connection.execute(
        "SELECT frozen, base FROM promotion WHERE frozen IS NOT NULL AND (outcome IS NULL OR outcome = 'healthy')"
    )
    for row in rows:
        keep |= {*json.loads(row["frozen"]), *json.loads(row["base"])}
    recent = connection.execute("SELECT DISTINCT level FROM launch ORDER BY started DESC LIMIT ?", (KEEP_ASIDE,))
    return keep | {row["level"] for row in recent}


def _sync_file_system(path: Path) -> None:
    """fsync of everything below: one syncfs is cheaper than one fsync per file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise OSError(ctypes.get_errno(), "syncfs failed")
    finally:
        os.close(descriptor)
