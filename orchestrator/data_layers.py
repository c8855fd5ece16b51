"""Durable data of the main instance (/root/data and /app): numbered levels, each an upper that becomes a lower layer.

A level lies in `.sia/main/levels/N/{data,app}/upper`. Freezing it is one row in the ledger (its number moves to the
stack), nothing is renamed, so a kill at any moment leaves either the old stack or the new one. Levels are written by
instances: they are only ever mounted as overlay layers, last.
"""

from __future__ import annotations

import ctypes
import json
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.database import transaction
from orchestrator.generations import Data, Ledger
from orchestrator.home import Home
from orchestrator.instances import data_skeleton
from sandbox.spec import Overlay

if TYPE_CHECKING:
    from sandbox.host import Host

DESTINATIONS = {"app": "/app", "data": "/root/data"}  # in the order of a trial: its workdir first
FLATTEN_ABOVE = 12  # levels in the stack; mount options hold 4096 bytes, 100 lowers failed, and each costs lookups
KEEP_ASIDE = 5  # levels of the last launches that were dropped, for a look


@dataclass(frozen=True)
class Levels:
    """The directories of all levels below one home."""

    home: Home

    @property
    def root(self) -> Path:
        return self.home.main / "levels"

    def upper(self, level: int, name: str) -> Path:
        """Where level `level` of `name` ('data' or 'app') keeps its files."""
        return self.root / str(level) / name / "upper"

    def lowers(self, stack: tuple[int, ...], name: str) -> tuple[Path, ...]:
        """The frozen layers of a stack, bottom first; a level that never was launched has none."""
        return tuple(path for level in stack if (path := self.upper(level, name)).is_dir())

    def prepare(self, host: Host, data: Data) -> tuple[Overlay, ...]:
        """Overlays for a launch, made if missing, above the lowest layers that a trial has too.

        Safe to repeat: an existing upper is used as it is (that is how state survives a restart)."""
        overlays, lowest = [], _skeletons(host, self.home)
        for name, destination in DESTINATIONS.items():
            parent = self.root / str(data.upper)
            upper, work = parent / name / "upper", parent / name / "work"
            if not (upper.is_dir() and work.is_dir()):
                parent.mkdir(mode=0o711, parents=True, exist_ok=True)
                upper, work = host.make_upper(parent, name)
            overlays.append(Overlay(destination, (lowest[name], *self.lowers(data.stack, name)), upper, work))
        return tuple(overlays)


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
        target = levels.upper(level, name)
        target.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        lowers = levels.lowers(data.stack, name)
        if lowers:
            layers.flatten(host, lowers, target)
        else:
            target.mkdir()
    host.own(levels.root / str(level))
    _sync_file_system(levels.root)
    with transaction(connection):
        connection.execute("UPDATE main_data SET stack = ? WHERE stack = ?", (f"[{level}]", json.dumps(data.stack)))
    return True


def collect(host: Host, levels: Levels, connection: sqlite3.Connection) -> list[int]:
    """Remove levels that nothing can go back to. Returns their numbers. Only while no main instance runs."""
    removed = unneeded(levels, connection)
    for path in removed:
        host.remove(path)
    return sorted(int(path.name) for path in removed)


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


def _skeletons(host: Host, home: Home) -> dict[str, Path]:
    """The lowest layers: the directories of /root/data, and nothing for /app; owned by the sandbox uid."""
    empty = home.main / "app-skeleton"
    empty.mkdir(mode=0o755, parents=True, exist_ok=True)
    made = {"app": empty, "data": data_skeleton(home.main)}
    for path in made.values():
        host.own(path)
    return made
