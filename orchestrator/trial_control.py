"""A running trial as its campaign steers it: what it does now, and how a person can step in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from orchestrator.captured import Stop
from orchestrator.errors import Failed
from orchestrator.running import Now, action_of

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.broker import Line
    from orchestrator.instances import Instance
    from orchestrator.journal import Exchange
    from orchestrator.live import LiveAnswer

KILLED = "killed by a person"
SPOKEN_TO = "a person sent it a message"
KILL_PATIENCE = 8.0  # seconds until a kill is said to take longer


class TrialControl:
    """One trial, from before its start to its end; every method may be called from any thread.

    It is a `Stop` itself: set once the trial is killed or the whole campaign stops (`stop`). `excluded` says why its
    result can't be compared with those of other trials, None if it can.
    """

    def __init__(self, stop: Stop | None = None) -> None:
        self.since = time.time()
        self.excluded: str | None = None
        self.journal: str | None = None
        self._line: Line | None = None
        self.directory: Path | None = None
        self._stop = stop
        self._killed = False
        self._phase = "starting"
        self._action: str | None = None
        self._instance: Instance | None = None
        self._send: Callable[[bytes], None] | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()

    # -- for the trial ------------------------------------------------------------------------------------------------

    def is_set(self) -> bool:
        """Whether it has to end at once."""
        return self._killed or self.stopping

    @property
    def killed(self) -> bool:
        """A person ended this trial."""
        return self._killed

    @property
    def stopping(self) -> bool:
        """The campaign ends all its trials."""
        return self._stop is not None and self._stop.is_set()

    def recorded(self, line: Line, journal: str) -> None:
        """Its engine line, and the journal that records it."""
        self._line, self.journal = line, journal

    def answered(self, exchange: Exchange) -> None:
        """The broker recorded an exchange."""
        self._action = action_of(exchange) or self._action

    @contextmanager
    def at_work(self, instance: Instance, send: Callable[[bytes], None]) -> Iterator[None]:
        """While the block runs, `instance` can be paused and spoken to."""
        with self._lock:
            self._instance, self._send, self._phase = instance, send, "running"
        try:
            yield
        finally:
            with self._lock:
                self._phase = "ended"

    def verifying(self) -> None:
        """The instance has ended; its result is looked at."""
        self._phase = "verifying"

    def conclude(self) -> str | None:
        """Its result is made now, and no kill changes it any more. Returns why it does not count, if so."""
        with self._lock:
            self._phase = "done"
            return self.excluded

    def over(self) -> None:
        """Nothing of the trial runs any more."""
        self._over.set()

    # -- for a person -------------------------------------------------------------------------------------------------

    def kill(self) -> str:
        """End it, with a result that does not count. Returns when nothing of it runs any more, or says that it will."""
        with self._lock:
            if self._phase == "done" or self._over.is_set():
                raise Failed("it has just ended by itself")
            self._killed, self.excluded = True, KILLED
        return "killed" if self._over.wait(KILL_PATIENCE) else "killed; its remains are still being cleaned up"

    def pause(self) -> str:
        """Stop its processes and its clock. Raises SiaError if they can't be stopped."""
        self._running().pause()
        return "paused"

    def resume(self) -> str:
        """Let them go on."""
        instance = self._running()
        if instance.pauses.since is None:
            raise Failed("it is not paused")
        instance.resume()
        return "it goes on"

    def message(self, text: str) -> str:
        """Give it a message on its standard input; its result does not count any more."""
        self._running()
        with self._lock:
            send, phase = self._send, self._phase
            if send is None or phase != "running":
                raise Failed("its instance has just ended")
            self.excluded = self.excluded or SPOKEN_TO
            send(text.rstrip("\n").encode("utf-8") + b"\n")
        return "sent; its result does not count any more"

    @property
    def live(self) -> LiveAnswer | None:
        """What is asked and answered now."""
        return self._line.live if self._line else None

    def now(self) -> Now:
        """For its row in the table of what runs."""
        instance, line = self._instance, self._line
        values = Now.of(
            self._phase,
            line.usage if line else None,
            instance.use if instance else None,
            instance.pauses if instance else None,
            self._action,
        )
        return replace(
            values,
            journal=self.journal,
            directory=str(self.directory) if self.directory else None,
        )

    def _running(self) -> Instance:
        instance, phase = self._instance, self._phase
        if instance is None or phase == "starting":
            raise Failed("it is just starting", fix="try again in a moment")
        if phase != "running":
            raise Failed(f"its instance has ended ({phase})")
        return instance
