"""The broker: the outer end of an instance's engine line. Records, counts, charges and cuts off."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.engines.host import EngineHost
from orchestrator.journal import Exchange, Journal


@dataclass(frozen=True)
class Budget:
    """Upper bounds of one line; None = none. `cost` in US dollars: an unknown cost counts as over the bound."""

    iterations: int | None = None
    tokens: int | None = None
    cost: float | None = None


@dataclass(frozen=True)
class Usage:
    """What a line has used. `iterations` = answered inferences. `cost` is None (unknown) once one price was unknown."""

    iterations: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    cost: float | None = 0.0
    engine_seconds: float = 0.0
    counts: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and completion tokens together: what a token budget bounds."""
        return self.prompt_tokens + self.completion_tokens


class Line:
    """One engine line. `instance_end` goes to the instance as SIA_ENGINE_FD; close it here after the launch.

    `ended` says why no more answers come: None (open), `closed` (the instance closed it), `budget`, `engine` (three
    inferences in a row failed), `abuse` (too many bad requests), `journal` (evidence can't be written), `stopped`
    (`close` was called). After `budget` the line stays open, so that the agent can end in order.
    """

    instance_end: socket.socket
    ended: str | None
    usage: Usage
    engine_faults: tuple[str, ...]  # engine failures that reached the instance, in words; at most the last 20
    outage: str | None  # evidence that the engine (not this instance) failed: trials are invalid, not crashed
    engine_silent: float  # seconds that the request in work has waited without a byte from the engine; 0.0 = no wait
    first_request: threading.Event
    last_activity: float  # time.monotonic() of the last byte from the instance or to it
    notes: tuple[str, ...]  # e.g. "unguided: …"

    def __init__(
        self,
        engine: EngineHost,
        journal: Journal,
        budget: Budget,
        schema: bytes,
        seed: Callable[[int], int],
        on_exchange: Callable[[Exchange], None] | None = None,
        *,
        silence: float = 120.0,
    ) -> None:
        raise NotImplementedError

    def start(self) -> None:
        """Serve in a thread of its own."""

    def close(self) -> None:
        """End the line and its generation; the thread is gone when this returns."""
