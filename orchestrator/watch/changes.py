"""What an instance changed on its disk: of a running one read from its layers, of an ended one the list that was kept.

A running instance writes while we read, so nothing is trusted and nothing is changed: directories are opened by
descriptors below the upper, no link is followed, no file is opened at all, and time and count are capped.
"""

from __future__ import annotations

import json
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from orchestrator import database
from orchestrator.data_layers import DESTINATIONS, Levels
from orchestrator.errors import SiaError, UsageError
from orchestrator.home import Home
from orchestrator.instances import AGENT_DATA
from orchestrator.kept_changes import NAME
from orchestrator.task_files import KEY_LENGTH
from orchestrator.watch.values import Instance
from sandbox.errors import UnsafePath
from sandbox.read import open_beneath
from sandbox.stack import is_whiteout

LISTED = 10_000
SECONDS = 0.5  # that one look at a running instance may take
KEPT_BYTES = 16 << 20  # of a kept list
MAX_DEPTH = 64  # directories below each other that are looked into, of a running instance
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class ChangeLine:
    """One path, as the instance sees it (untrusted). `kind`: added, modified, deleted, type, mode, xattr; of a running
    instance `modified` means that its content may be the same, and `written` that it may have been there before."""

    path: str
    kind: str
    directory: bool
    size: int  # bytes


@dataclass(frozen=True)
class Changes:
    """`live`: read while it runs. `cut`: there are more. `note`: what else is to be said, or why there is nothing."""

    rows: tuple[ChangeLine, ...]
    live: bool
    cut: bool
    note: str = ""
    total_bytes: int = 0


@dataclass(frozen=True)
class _Layer:
    """An upper: a descriptor of its top, where the instance sees it, and the starting files below it if known."""

    top: int
    place: str
    lower: Path | None


def of_instance(home: Home, instance: Instance) -> Changes:
    """Of a running instance."""
    walk = _Walk(time.monotonic() + SECONDS)
    try:
        for layer in _main_layers(home, instance) if instance.kind == "main" else _trial_layers(home, instance):
            try:
                walk.layer(layer)
            finally:
                os.close(layer.top)
    except (OSError, sqlite3.Error) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        walk.notes.append(f"its files can't be read ({why})")
    if walk.unread:
        walk.notes.append(f"{walk.unread} directories can't be read")
    return _changes(walk.rows, "; ".join(walk.notes), live=True, cut=walk.cut)


def of_trial(home: Home, campaign: str, trial: str) -> Changes:
    """Of an ended trial: the list that was kept."""
    path = home.campaigns / campaign / "trials" / trial / NAME
    rows: list[ChangeLine] = []
    cut = False
    try:
        with path.open("rb") as file:
            for line in file.read(KEPT_BYTES).splitlines():
                value = json.loads(line)
                cut = cut or bool(value.get("more"))
                if "path" in value:
                    about = (str(value["path"]), str(value["kind"]), bool(value["directory"]), int(value["size"]))
                    rows.append(ChangeLine(*about))
    except FileNotFoundError:
        return Changes((), live=False, cut=False, note="no list of its changes was kept")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        cut = True  # the end of it is missing, or it is not ours
    return _changes(rows, "", live=False, cut=cut)


def look(home: Home, name: str, running: Instance | None = None) -> Changes:
    """Of whatever `name` is: the running instance if there is one, else the trial. Raises UsageError if unknown."""
    if running is not None and running.said != "verifying":
        return of_instance(home, running)
    connection = database.look(home.database)
    if connection is None:
        raise UsageError("nothing has run here yet", where=str(home.root), fix="sia campaign run FILE")
    with closing(connection):
        query = "SELECT id, campaign, state FROM trial WHERE substr(id, 1, length(?)) = ? ORDER BY id LIMIT 6"
        found = connection.execute(query, (name, name)).fetchall() if name else []
    exact = [row for row in found if row["id"] == name] or found
    if len(exact) > 1:
        raise UsageError(f"{name!r} could be {', '.join(row['id'] for row in exact)}", fix="write more of the id")
    if not exact:
        fix = "`sia campaign show ID --trials` names the trials"
        raise UsageError(f"no instance or trial {name!r}", fix=fix)
    if exact[0]["state"] == "planned":
        return Changes((), live=False, cut=False, note="it has not run yet")
    return of_trial(home, exact[0]["campaign"], exact[0]["id"])


def _changes(rows: list[ChangeLine], note: str, *, live: bool, cut: bool) -> Changes:
    total = sum(row.size for row in rows if not row.directory)
    return Changes(tuple(sorted(rows, key=lambda row: row.path)), live, cut, note, total)


# -- a running instance ---------------------------------------------------------------------------------------------


class _Walk:
    """Lists what lies in uppers. `unread`: directories that could not be opened."""

    def __init__(self, deadline: float) -> None:
        self.rows: list[ChangeLine] = []
        self.cut = False
        self.notes: list[str] = []
        self.unread = 0
        self._deadline = deadline

    def layer(self, layer: _Layer) -> None:
        """Everything below one upper, as long as there is time and room."""
        self._directory(layer, layer.top, "", 0)

    def _directory(self, layer: _Layer, descriptor: int, below: str, depth: int) -> None:
        with os.scandir(descriptor) as entries:
            for entry in entries:
                if len(self.rows) >= LISTED or time.monotonic() > self._deadline:
                    self.cut = True
                    return
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue  # gone by now
                path = f"{below}{entry.name}"
                self._note(layer, path, status)
                if stat.S_ISDIR(status.st_mode):
                    self._enter(layer, descriptor, entry.name, path, depth)

    def _enter(self, layer: _Layer, parent: int, name: str, path: str, depth: int) -> None:
        if depth >= MAX_DEPTH:
            self.cut = True
            return
        try:
            inner = os.open(name, _DIRECTORY, dir_fd=parent)
        except OSError:
            self.unread += 1
            return
        try:
            self._directory(layer, inner, f"{path}/", depth + 1)
        except OSError:
            self.unread += 1
        finally:
            os.close(inner)

    def _note(self, layer: _Layer, path: str, status: os.stat_result) -> None:
        before = _exists(layer.lower, path)
        directory = stat.S_ISDIR(status.st_mode)
        if directory and before is not False:
            return  # it was there, or nobody knows: what lies in it says enough
        if is_whiteout(status):
            kind = "deleted"
        else:
            kind = "written" if before is None else "modified" if before else "added"
        size = status.st_size if stat.S_ISREG(status.st_mode) else 0
        self.rows.append(ChangeLine(f"{layer.place.rstrip('/')}/{path}", kind, directory, size))


def _exists(lower: Path | None, path: str) -> bool | None:
    """Whether the starting files have it; None where nobody knows what they are."""
    if lower is None:
        return None
    try:
        os.close(open_beneath(lower, path, os.O_PATH | os.O_NOFOLLOW))
    except FileNotFoundError:
        return False
    except (UnsafePath, OSError):
        return True  # a link, for one
    return True


def _main_layers(home: Home, instance: Instance) -> Iterator[_Layer]:
    connection = database.look(home.database)
    if connection is None:
        return
    with closing(connection):
        row = connection.execute("SELECT level FROM launch WHERE nonce = ?", (instance.id,)).fetchone()
    for name, place in DESTINATIONS.items() if row else ():
        with suppress(FileNotFoundError):
            yield _Layer(os.open(Levels(home).upper(row["level"], name), _DIRECTORY), place, None)


def _trial_layers(home: Home, instance: Instance) -> Iterator[_Layer]:
    directory = instance.directory or home.campaigns / str(instance.campaign) / "trials" / instance.id
    files, places = _starting_files(home, instance)
    # `layers` is ours: a directory, or a link to one that lies in memory (sandbox/ramdisks.py)
    top = os.open(directory / "layers", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with os.scandir(top) as entries:
            names = sorted(entry.name for entry in entries)
        for name in names:
            with suppress(FileNotFoundError, NotADirectoryError):
                outer = os.open(name, _DIRECTORY, dir_fd=top)
                try:
                    upper = os.open("upper", _DIRECTORY, dir_fd=outer)
                finally:
                    os.close(outer)
                if name == "d":
                    yield _Layer(upper, AGENT_DATA, None)
                elif name.isdigit():
                    known = places[int(name)] if int(name) < len(places) else f"(place {name})"
                    lower = files / name if files and (files / name).is_dir() else None
                    yield _Layer(upper, known, lower)
                else:
                    os.close(upper)
    finally:
        os.close(top)


def _starting_files(home: Home, instance: Instance) -> tuple[Path | None, tuple[str, ...]]:
    """Where the copies of the task's files lie, and where the instance sees each."""
    connection = database.look(home.database)
    if connection is None:
        return None, ()
    with closing(connection):
        query = "SELECT path, key FROM campaign_task WHERE campaign = ? AND name = ?"
        row = connection.execute(query, (instance.campaign, instance.task)).fetchone()
    if row is None:
        return None, ()
    files = home.campaigns / str(instance.campaign) / "tasks" / f"{instance.task}-{row['key'][:KEY_LENGTH]}" / "files"
    return files, _places(row["path"])


def _places(task: str) -> tuple[str, ...]:
    from orchestrator.tasks import load_task  # reads the task's files, with pydantic

    try:
        return load_task(Path(task)).places
    except (SiaError, OSError):  # moved or changed since
        return ()
