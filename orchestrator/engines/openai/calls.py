"""Requests that can be given up at any moment: tasks on an event loop in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.engines.serve import Hangup

T = TypeVar("T")
_TICK = 0.1  # seconds between looks at whether anyone still waits
_AHEAD = 64  # items that a server may be ahead of whoever takes them


class Late(Exception):
    """Nothing was passed on for as long as one waits."""


class Wait:
    """How long an asker waits: until it has gone (`gone`), or for `patience` seconds without a byte for it."""

    def __init__(self, patience: float, gone: Callable[[], bool] = lambda: False) -> None:
        self.patience, self._gone = patience, gone
        self._since = time.monotonic()

    @property
    def left(self) -> float:
        """Seconds until it is too late."""
        return self._since + self.patience - time.monotonic()

    def passed(self) -> None:
        """The asker got something: it waits anew."""
        self._since = time.monotonic()

    def look(self) -> float:
        """Seconds until it should be looked again. Raises Hangup, Late."""
        if self._gone():
            raise Hangup
        if (left := self.left) <= 0:
            raise Late(f"no answer in {self.patience:g} s")
        return min(left, _TICK)

    def rest(self, seconds: float) -> None:
        """Wait before a request is sent again. Raises Hangup, Late."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            time.sleep(min(left, self.look()))

    def within(self, seconds: float) -> Wait:
        """For a part that may take less: the same asker, no later than this one."""
        return Wait(min(seconds, self.left), self._gone)


@dataclass(frozen=True)
class _End:
    """The end of what a task brings, and what it failed with."""

    error: Exception | None


class _Items(Generic[T]):
    """What a task brings and a thread takes. A task that is too far ahead waits."""

    def __init__(self, source: AsyncGenerator[T, None]) -> None:
        self._source = source
        self._queue: queue.Queue[T | _End] = queue.Queue(_AHEAD)

    async def bring(self) -> None:
        """Everything that the source gives, and its end."""
        failed: Exception | None = None
        try:
            async with contextlib.aclosing(self._source) as source:
                async for item in source:
                    await self._put(item)
        except Exception as error:
            failed = error
        await self._put(_End(failed))

    async def _put(self, item: T | _End) -> None:
        while self._queue.full():
            await asyncio.sleep(0.01)
        self._queue.put_nowait(item)

    def take(self, wait: Wait) -> Generator[T, None, None]:
        while True:
            try:
                item = self._queue.get(timeout=wait.look())
            except queue.Empty:
                continue
            if not isinstance(item, _End):
                yield item
            elif item.error is not None:
                raise item.error
            else:
                return


class Calls:
    """An event loop for the requests of all threads."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="calls", daemon=True).start()

    def each(self, source: AsyncGenerator[T, None], wait: Wait) -> Generator[T, None, None]:
        """What a source gives, as it comes; what it raises is raised here. Raises Hangup, Late.

        A source that is not taken to its end is cancelled, whatever it waits for: its connection is closed.
        """
        items = _Items(source)
        task = asyncio.run_coroutine_threadsafe(items.bring(), self._loop)
        try:
            yield from items.take(wait)
        finally:
            task.cancel()
