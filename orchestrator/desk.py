"""Where an owner takes requests: looked at in its loop, done in threads of their own, so that no request stops it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Mapping

from orchestrator.errors import SiaError
from orchestrator.requests import Request

EVERY = 0.25  # seconds between looks
LAST = 5.0  # seconds that requests at work have at the end


class Desk:
    """One owner's. `take` gives open requests about subjects, `finish` stores a result (id, text, refused); both are
    called by the thread that calls `look`. `act` does a request and returns the result in words, or raises SiaError
    with the reason why not; it runs in another thread. What is asked is done in order, but a kill waits for nothing.
    """

    def __init__(
        self,
        take: Callable[[Mapping[str, float]], list[Request]],
        finish: Callable[[int, str, bool], None],
        act: Callable[[Request], str],
    ) -> None:
        self._take, self._finish, self._act = take, finish, act
        self._next = 0.0
        self._work: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._done: queue.SimpleQueue[tuple[int, str, bool]] = queue.SimpleQueue()
        self._worker: threading.Thread | None = None
        self._open = 0

    def look(self, subjects: Mapping[str, float]) -> None:
        """Store results and take what is new, four times a second at most. `subjects`: as for `requests.pending`."""
        self._store()
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY
        for request in self._take(subjects):
            self._open += 1
            if request.kind in ("kill", "stop_campaign"):
                threading.Thread(target=self._do, args=(request,), name="request", daemon=True).start()
            else:
                self._queue(request)

    def close(self) -> None:
        """The last results are stored. Whatever hangs is left behind."""
        deadline = time.monotonic() + LAST
        while self._open and time.monotonic() < deadline:
            self._store(wait=0.05)
        self._work.put(None)

    def _queue(self, request: Request) -> None:
        if self._worker is None:
            self._worker = threading.Thread(target=self._run, name="requests", daemon=True)
            self._worker.start()
        self._work.put(request)

    def _run(self) -> None:
        while (request := self._work.get()) is not None:
            self._do(request)

    def _do(self, request: Request) -> None:
        try:
            result = self._act(request), False
        except SiaError as error:
            result = error.what, True
        except Exception as error:  # a fault of this program must not end a campaign, or supervision
            result = f"internal error: {type(error).__name__}: {error}", True
        self._done.put((request.id, *result))

    def _store(self, wait: float = 0.0) -> None:
        while True:
            try:
                done = self._done.get(timeout=wait) if wait else self._done.get_nowait()
            except queue.Empty:
                return
            self._open -= 1
            self._finish(*done)
