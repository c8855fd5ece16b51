"""What an instance's line works on right now, for whoever watches: `.sia/run/live/<id>.json`.

A watcher touches `<id>.wanted` a few times a second. The broker only remembers what it has in hand anyway; the owner's
loop looks at the directory four times a second and writes for those that are wanted. Nobody watches: one look at a
directory. The instance's line never waits for any of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from orchestrator.home import Home
    from orchestrator.protocol import Request

FRESH = 10.0  # seconds since the last touch
STALE = 600.0  # seconds after which a file is nobody's
EVERY = 0.25  # seconds between writes
MOST = 1024 * 1024  # characters of a context, and of an answer

State = Literal["asking", "answering", "working"]


class LiveAnswer:
    """One line's. Written by the broker's thread, read by the owner's."""

    def __init__(self) -> None:
        self.n = 0  # number of the exchange
        self.asked: float | None = None  # Unix seconds
        self.state: State = "working"
        self.version = 0
        self._context: tuple[str, ...] = ()
        self._pieces: list[str] = []
        self._size = 0

    def asking(self, n: int, request: Request) -> None:
        """The engine is asked for an answer."""
        if request.context is not None:
            self._context = (request.context,)
        else:
            self._context = tuple(f"[{turn.role}]\n{turn.text}\n\n" for turn in request.turns)
        self._pieces, self._size = [], 0
        self.n, self.asked, self.state = n, time.time(), "asking"
        self.version += 1

    def answering(self, text: str) -> None:
        """A piece of the answer came."""
        if self._size <= MOST:
            self._pieces.append(text)
            self._size += len(text)
        self.state = "answering"
        self.version += 1

    def working(self) -> None:
        """The answer is complete: the instance works with it."""
        self.state = "working"
        self.version += 1

    def text(self) -> str:
        """As the file says it. Plain ASCII, so that whatever an instance or an engine wrote can be stored."""
        values = {
            "n": self.n,
            "asked": self.asked,
            "context": "".join(self._context)[:MOST],
            "answer": "".join(list(self._pieces))[:MOST],
            "state": self.state,
        }
        return json.dumps(values)


class LiveFiles:
    """One owner's files. `look` is called in its loop."""

    def __init__(self, home: Home) -> None:
        self.directory: Path = home.run / "live"
        self._written: dict[str, tuple[LiveAnswer, int]] = {}
        self._next = 0.0

    def look(self, answers: Mapping[str, LiveAnswer]) -> None:
        """Write what is wanted and new, remove what has ended. Never raises: it is only for looking."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY
        with contextlib.suppress(OSError):
            for id in self._written.keys() - answers.keys():
                self.forget(id)
            for id in self._wanted() & answers.keys():
                answer = answers[id]
                state = answer, answer.version
                if self._written.get(id) != state or not (self.directory / f"{id}.json").exists():
                    self._write(id, answer.text())
                    self._written[id] = state

    def forget(self, id: str) -> None:
        """The instance has ended."""
        self._written.pop(id, None)
        for ending in ("json", "wanted"):
            with contextlib.suppress(OSError):
                (self.directory / f"{id}.{ending}").unlink()

    def close(self) -> None:
        """The owner ends."""
        for id in list(self._written):
            self.forget(id)
        with contextlib.suppress(OSError):  # there are others, or somebody still watches
            self.directory.rmdir()

    def _wanted(self) -> set[str]:
        now = time.time()
        try:
            with os.scandir(self.directory) as entries:
                ages = {entry.name: now - entry.stat(follow_symlinks=False).st_mtime for entry in entries}
        except FileNotFoundError:  # nobody watches, or a file has just gone: the next look is soon
            return set()
        wanted = {
            name.removesuffix(".wanted") for name, age in ages.items() if name.endswith(".wanted") and age < FRESH
        }
        for name, age in ages.items():
            if age > STALE and name.rpartition(".")[0] not in wanted:
                (self.directory / name).unlink(missing_ok=True)  # of a watcher, or an owner, that was killed
        return wanted

    def _write(self, id: str, text: str) -> None:
        """Whole or not at all; not durable, which would cost time for what is old in a moment."""
        draft = self.directory / f".{id}.{os.getpid()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "w", encoding="ascii") as file:
            file.write(text)
        draft.replace(self.directory / f"{id}.json")
