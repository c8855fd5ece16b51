"""Ctrl-C, SIGTERM and a closed terminal while a campaign runs: everything ends in order, and can be resumed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from orchestrator.progress import Progress

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Before and after the trials a signal raises KeyboardInterrupt; while they run it asks the runner to stop.

    A second one during the stop leaves at once (exit 130): the sandboxes die with this process, and a resume cleans up.
    Does nothing outside the main thread, where Python can't take signals.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self._stop: Callable[[], None] | None = None
        self._asked = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup keeps its meaning
                    self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def stopping(self, stop: Callable[[], None]) -> Iterator[None]:
        """While the block runs, a signal calls `stop` instead of raising."""
        self._stop = stop
        try:
            yield
        finally:
            self._stop = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._stop is None:
            if self._asked:
                return  # the clean-up after the first one is under way
            self._asked = True
            raise KeyboardInterrupt
        if self._asked:
            self.progress.close()
            os._exit(130)
        self._asked = True
        os.write(2, b"\nstopping: trials at work are ended and will be run again by a resume; again to leave at once\n")
        self._stop()
