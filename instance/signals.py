"""What signals ask of the agent: stop (SIGTERM, Ctrl-C) or restart (SIGUSR1), and until when work may go on."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from types import FrameType
from typing import Literal

Request = Literal["stop", "restart"]

STOP_GRACE = 7.0  # seconds; the contract gives 10 from SIGTERM to the end, saving the state included
RESTART_PATIENCE = 45.0  # seconds; a promotion is given up after 60
RESTART_FORGOTTEN = 58.0  # seconds; whoever asked no longer waits, and 42 would count as a crash


class Interrupt:
    """Set by signal handlers, read by everything that waits. Waiting code also polls `fileno` to wake up at once."""

    def __init__(self) -> None:
        self.request: Request | None = None
        self.signum: int | None = None
        self.asked_at = 0.0  # monotonic seconds
        self._read, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def install(self) -> None:
        """Take over SIGTERM, SIGINT and SIGUSR1 of this process."""
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
            signal.signal(signum, self._handle)

    def _handle(self, signum: int, _frame: FrameType | None) -> None:
        if signum == signal.SIGUSR1:
            if self.request is None:
                self.ask("restart", signum)
        elif self.request == "stop" and signum == signal.SIGINT:
            raise KeyboardInterrupt  # a second Ctrl-C: the person does not want to wait
        else:
            self.ask("stop", signum)

    def ask(self, request: Request, signum: int | None = None) -> None:
        """Ask the agent to end after this iteration. The time that is left runs from the first request of its kind."""
        if self.request != request:
            self.request, self.signum, self.asked_at = request, signum, time.monotonic()
            with contextlib.suppress(BlockingIOError):  # full: then it is readable already
                os.write(self._write, b"!")

    def forget_late_restart(self) -> None:
        """Drop a request to restart that took so long that it was given up."""
        if self.request == "restart" and time.monotonic() - self.asked_at > RESTART_FORGOTTEN:
            self.request = None

    def fileno(self) -> int:
        """A descriptor that becomes readable when a signal arrives."""
        return self._read

    def drain(self) -> None:
        """Forget wake-ups that were seen."""
        try:
            while os.read(self._read, 512):
                pass
        except BlockingIOError:
            pass

    def answer_deadline(self) -> float | None:
        """Monotonic time after which a generation is cancelled; None = no limit."""
        if self.request is None:
            return None
        return self.asked_at + (STOP_GRACE if self.request == "stop" else RESTART_PATIENCE)

    def script_deadline(self) -> float | None:
        """Monotonic time after which running scripts are killed. A restart never cuts a script: it can wait."""
        return self.asked_at + STOP_GRACE if self.request == "stop" else None
