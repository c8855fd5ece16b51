"""What nothing refers to any more, and its removal (`sia gc`).

Named by the ledger (every generation, the open promotion), by a campaign that is not finished, or by one of the newest
campaigns: kept. So is whatever a process has in hand (`orchestrator.uses`), and what was made a short while ago. What a
verdict rests on, journals and the trials' own files, is only removed when a person asks for exactly that.
"""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import data_layers, database, exchange_garbage, locks, scratch, supervisor_lock, uses
from orchestrator.campaign_view import lock_path
from orchestrator.candidates import commit_lock
from orchestrator.config import Agent
from orchestrator.environments import base_python, name_of, use_lock
from orchestrator.errors import Failed, SiaError
from orchestrator.repository import Repository
from orchestrator.verifier_packages import REQUIREMENTS
from sandbox import orphans

if TYPE_CHECKING:
    from orchestrator.config import Settings
    from orchestrator.home import Home

KEEP_CAMPAIGNS, MIN_AGE_HOURS = 10, 24.0  # defaults
UNFINISHED = ("running", "interrupted")  # states of a campaign
COMMIT = re.compile(r"[0-9a-f]{40}")
BUNDLE = re.compile(r"([0-9a-f]{40})-[0-9a-f]+\.bundle")
ENVIRONMENT = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True)
class Item:
    """One thing that can go. `bytes` on the disk; `lock` says whether a process has it in hand."""

    kind: str  # export, bundle, environment, layer, task files, trial files, texts, debris
    path: Path
    bytes: int
    lock: Path | None = None


@dataclass(frozen=True)
class Rules:
    """What a person asked for."""

    keep: int = KEEP_CAMPAIGNS  # newest campaigns whose things stay
    min_age: float = MIN_AGE_HOURS * 3600  # seconds; younger things stay
    evidence: bool = False  # also what verdicts of the other campaigns rest on


@dataclass(frozen=True)
class Collection:
    """What was (or, after a dry run, would be) removed, and in words what was left and why."""

    items: tuple[Item, ...]
    left: tuple[str, ...]

    @property
    def bytes(self) -> int:
        """Of all of them."""
        return sum(item.bytes for item in self.items)


@dataclass(frozen=True)
class _Needed:
    commits: frozenset[str]
    agents: tuple[Agent, ...]  # settings under which environments may have been built
    old: tuple[str, ...]  # finished campaigns that are not kept
    closed: tuple[str, ...]  # campaigns that never run again


def collect(home: Home, settings: Settings, rules: Rules, *, dry_run: bool = False) -> Collection:
    """Find and remove. Safe beside a supervisor, campaigns and other collectors; what they use stays."""
    left: list[str] = []
    removed: list[Item] = []
    with database_of(home) as connection:
        # Listed before the database is read: what appears in between is not in the list.
        found = list(_listed(home, time.time() - rules.min_age, left))
        needed = _needed(connection, settings, rules.keep)
        environments = _environments(home, needed)
        for item in found:
            if item.path.name in environments or _commit_of(item) in needed.commits:
                continue
            busy = item.lock is not None and uses.busy(item.lock)
            if not busy and (dry_run or _remove(item)):
                removed.append(item)
            else:
                left.append(f"{item.kind} {item.path.name}: in use")
        for campaign in needed.closed:
            files = home.campaigns / campaign
            places = [("task files", files / "tasks")]
            if rules.evidence and campaign in needed.old:
                places.append(("trial files", files / "trials"))
            removed += _campaign(home, connection, campaign, places, left, dry_run=dry_run)
        removed += _levels(home, connection, left, dry_run=dry_run)
        if rules.evidence:
            removed += _texts(home, lambda: _needed(connection, settings, rules.keep).old, left, dry_run=dry_run)
    return Collection(tuple(removed), tuple(left))


@contextmanager
def database_of(home: Home) -> Iterator[sqlite3.Connection]:
    """A connection that is closed at the end."""
    connection = database.connect(home.database)
    try:
        yield connection
    finally:
        connection.close()


# -- what is needed ---------------------------------------------------------------------------------------------------


def _needed(connection: sqlite3.Connection, settings: Settings, keep: int) -> _Needed:
    with database.transaction(connection):  # one moment for all of it
        commits = {row[0] for row in connection.execute("SELECT commit_id FROM generation")}
        for row in connection.execute("SELECT old_commit, new_commit FROM promotion WHERE outcome IS NULL"):
            commits |= {row[0], row[1]}
        rested_on = {
            row[0]
            for row in connection.execute(
                "SELECT campaign FROM generation UNION SELECT campaign FROM promotion WHERE outcome IS NULL"
            )
        }
        rows = connection.execute("SELECT id, state, setup FROM campaign ORDER BY created DESC, id DESC").fetchall()
        agents, old, closed = [settings.agent], [], []
        for number, row in enumerate(rows):
            unfinished = row["state"] in UNFINISHED
            if unfinished or number < keep:
                arms = connection.execute("SELECT judged FROM arm WHERE campaign = ?", (row["id"],))
                commits |= {arm[0] for arm in arms if arm[0]}
                agents.append(_agent(row["setup"], settings.agent))
            elif row["id"] not in rested_on:
                old.append(row["id"])
            if not unfinished:
                closed.append(row["id"])
    return _Needed(frozenset(commits), tuple(agents), tuple(old), tuple(closed))


def _agent(setup: str, default: Agent) -> Agent:
    kept = json.loads(setup).get("agent")
    return Agent.model_validate(kept) if kept else default


def _environments(home: Home, needed: _Needed) -> set[str]:
    """Names of the environments that needed commits and verifiers run in, for each interpreter that ours were made of.

    Empty where no environment could be removed anyway.
    """
    made = [path for path in _directories(home.environments) if ENVIRONMENT.fullmatch(path.name)]
    bases = set()
    for path in made:
        try:
            bases.add(base_python(path))
        except (OSError, ValueError, KeyError):
            continue  # not complete: nothing can run in it
    if not bases:
        return set()
    contents = {REQUIREMENTS}
    if home.repository.exists():
        repository = Repository(home)
        files = {agent.requirements for agent in needed.agents}
        contents |= {repository.file(commit, file) or b"" for commit in needed.commits for file in files}
    names = set()
    for content in contents:
        for base in bases:
            try:
                names.add(name_of(content, base))
            except SiaError:
                continue  # refused requirements have no environment, a vanished interpreter starts none
    return names


def _commit_of(item: Item) -> str | None:
    """The commit that an export or a bundle was made of."""
    if bundle := BUNDLE.fullmatch(item.path.name):
        return bundle[1]
    return item.path.name if COMMIT.fullmatch(item.path.name) else None


# -- what is there ----------------------------------------------------------------------------------------------------


def _listed(home: Home, before: float, left: list[str]) -> Iterator[Item]:
    """Everything of the kinds that exist once and are shared, if made before that time (Unix seconds)."""
    for root in (home.generations, home.root / "exports"):  # the last: older versions
        for path in _directories(root):
            if COMMIT.fullmatch(path.name):
                yield from _aged("export", path, before, commit_lock(home, path.name))
            elif path.name.startswith(".damaged-"):
                yield from _aged("debris", path, before, None)
    for path in (home.cache / "bundles").glob("*.bundle"):
        if found := BUNDLE.fullmatch(path.name):
            yield from _aged("bundle", path, before, commit_lock(home, found[1]))
    if (home.root / "envs").is_symlink():
        left.append(f"environments: {home.root / 'envs'} is a link, so other repositories may use them too")
        return
    for path in _directories(home.environments):
        if ENVIRONMENT.fullmatch(path.name):
            yield from _aged("environment", path, before, use_lock(path))


def _aged(kind: str, path: Path, before: float, lock: Path | None) -> Iterator[Item]:
    try:
        if path.lstat().st_mtime < before:
            yield Item(kind, path, size_of(path), lock)
    except FileNotFoundError:
        return  # somebody was faster


def _directories(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if path.is_dir() and not path.is_symlink()] if root.is_dir() else []


def size_of(path: Path) -> int:
    """Bytes on the disk at and below a path; files with several names count once. Never follows links."""
    seen: set[tuple[int, int]] = set()
    total, waiting = 0, [path]
    while waiting:
        try:
            here = waiting.pop()
            status = here.lstat()
            if (status.st_dev, status.st_ino) not in seen:
                seen.add((status.st_dev, status.st_ino))
                total += status.st_blocks * 512
                if here.is_dir() and not here.is_symlink():
                    waiting += here.iterdir()
        except OSError:
            continue  # it goes away under us, or is closed to us
    return total


# -- removing ---------------------------------------------------------------------------------------------------------


def _remove(item: Item) -> bool:
    """Whether it is gone. Out of its place first, by one rename: a kill leaves nothing that looks complete."""
    with ExitStack() as stack:
        if item.lock is not None and not stack.enter_context(uses.unused(item.lock)):
            return False
        trash = stack.enter_context(scratch.directory(item.path.parent, ".collected-"))
        try:
            item.path.rename(trash / item.path.name)
        except FileNotFoundError:
            return True
        if item.kind == "environment":  # its builders' lock: they use it as well, so there are none now
            item.path.with_suffix(".lock").unlink(missing_ok=True)
    return True


def _campaign(
    home: Home,
    connection: sqlite3.Connection,
    campaign: str,
    places: Sequence[tuple[str, Path]],
    left: list[str],
    *,
    dry_run: bool,
) -> list[Item]:
    """Files of a campaign that never runs again, unless somebody runs a trial of it again (`sia campaign rerun`)."""
    items = [Item(kind, path, size_of(path.resolve())) for kind, path in places if path.is_dir()]
    if not items or dry_run:
        return items
    try:
        with locks.hold(lock_path(home, campaign), f"campaign {campaign} is being run", "wait for it"):
            state = connection.execute("SELECT state FROM campaign WHERE id = ?", (campaign,)).fetchone()["state"]
            if state in UNFINISHED:  # begun since we looked, and interrupted
                left.append(f"files of campaign {campaign}: a trial of it is run again")
                return []
            for item in items:
                if item.path.is_symlink():  # to its neutral place
                    shutil.rmtree(item.path.resolve())
                    item.path.unlink()
                else:
                    shutil.rmtree(item.path)
    except (SiaError, OSError) as error:
        left.append(f"files of campaign {campaign}: {error}")
        return []
    return items


def _levels(home: Home, connection: sqlite3.Connection, left: list[str], *, dry_run: bool) -> list[Item]:
    """Layers of main's data that no rollback can go back to. A supervisor removes them itself when it starts."""
    levels = data_layers.Levels(home)
    if not data_layers.unneeded(levels, connection):
        return []
    if supervisor_lock.holder(home) is not None:
        left.append("layers of main's data: a supervisor runs; it collects them whenever it starts")
        return []
    if dry_run:
        return _level_items(levels, connection)
    from sandbox.host import Host

    try:
        with supervisor_lock.supervisor_lock(home, "gc"), Host.detect(home.root) as host:
            items = _level_items(levels, connection)
            data_layers.collect(host, levels, connection)
    except Failed as error:
        left.append(f"layers of main's data: {error.what}")
        return []
    return items


def _level_items(levels: data_layers.Levels, connection: sqlite3.Connection) -> list[Item]:
    found = []
    for path in data_layers.unneeded(levels, connection):
        uppers = (levels.upper(int(path.name), name) for name in data_layers.DESTINATIONS)
        found.append(Item("layer", path, size_of(path) + sum(size_of(upper) for upper in uppers)))
    return found


def _texts(home: Home, old: Callable[[], Sequence[str]], left: list[str], *, dry_run: bool) -> list[Item]:
    """Contexts and answers that only journals of old campaigns name. Which ones are old is asked when nothing runs, and
    nothing can start: one may have been gone on with, or promoted from, since we looked."""
    store = home.exchanges / "exchanges.db"
    if not old() or not store.exists():
        return []
    with orphans.alone(home.root) as alone:
        if not alone:
            left.append("texts of the exchange store: something runs that may write to it; stop it first")
            return []
        freed = exchange_garbage.collect(home, old(), dry_run=dry_run)
    return [Item("texts", store, freed)] if freed else []
