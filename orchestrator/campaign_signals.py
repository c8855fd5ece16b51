"""Ctrl-C, SIGTERM and a closed terminal while a campaign runs: trials at work end, and run again at the resume."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from orchestrator.progress import Progress

SAID = b"\nstopping: trials at work are ended, and run again at the resume; once more: leave at once\n"
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Signals:
    """Before the campaign is stored a signal raises KeyboardInterrupt; from then on (`asking`) it only sets `asked`.

    A second one after `asked` leaves at once (exit 130): the sandboxes die with this process, and a resume cleans up.
    Does nothing outside the main thread, where Python can't take signals.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.asked = threading.Event()
        self._asking = self._raised = False
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
    def asking(self) -> Iterator[None]:
        """While the block runs, signals set `asked` instead of raising."""
        self._asking = True
        try:
            yield
        finally:
            self._asking = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked.is_set():
            self.progress.close()
            os._exit(130)
        if self._asking:
            os.write(2, SAID)
            self.asked.set()
        elif not self._raised:  # later ones: the clean-up after the first is under way
            self._raised = True
            raise KeyboardInterrupt
