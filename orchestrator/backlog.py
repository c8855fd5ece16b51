"""Main's answers between the broker's thread, which records them, and the supervisor's, which checks them."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.journal import Asked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orchestrator.journal import Exchange

MOST = 256  # answers that wait
MOST_CHARACTERS = 64 << 20  # of all that wait, but for the first


class Backlog:
    """Inferences whose answers were not checked yet. Thread-safe, blocks nobody.

    How many come, and how long a check takes, is the instance's choice: one that finds no room is dropped, and so never
    counts as valid. Kept are prefix, reply and error. `arrived`: how many came, the dropped ones too.
    """

    def __init__(self) -> None:
        self.arrived = 0
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, Exchange]] = deque()
        self._characters = 0

    def put(self, exchange: Exchange) -> None:
        """One more exchange; those that are no inference are passed over."""
        if exchange.kind != "infer":
            return
        asked = Asked(exchange.asked.size, exchange.asked.sha256, prefix=exchange.asked.prefix)
        size = len(asked.prefix) + len(exchange.reply)
        with self._lock:
            self.arrived += 1
            fits = len(self._waiting) < MOST and self._characters + size <= MOST_CHARACTERS
            if fits or not self._waiting:
                self._waiting.append((size, replace(exchange, asked=asked)))
                self._characters += size

    def take(self, seconds: float) -> Iterator[Exchange]:
        """The oldest first, until none waits or the time is over, however fast more of them come."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with self._lock:
                if not self._waiting:
                    return
                size, exchange = self._waiting.popleft()
                self._characters -= size
            yield exchange
