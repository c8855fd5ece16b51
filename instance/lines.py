"""The byte stream to an engine: one that was given, or one to a program that is started here."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from typing import Protocol

from instance.errors import Cancelled, EngineLost, StartError
from instance.signals import Interrupt

_BACKOFF_FIRST, _BACKOFF_MAX = 0.1, 10.0  # seconds
_STEADY = 30.0  # seconds that a program must have lived for its next restart to come at once
_ATTEMPTS = 8  # restarts in a row, then the engine counts as lost


class Line(Protocol):
    """Where the socket to the engine comes from."""

    def open(self) -> socket.socket:
        """A connected socket. Raises EngineLost where there is none, or no second one."""
        ...

    def reopen(self) -> socket.socket:
        """A new one in place of one that failed or was cancelled."""
        ...

    def close(self) -> object:
        """Let go of everything."""
        ...


class InheritedLine:
    """The socket whose number is in SIA_ENGINE_FD. It can't be had again once it is closed."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._socket: socket.socket | None = None

    def open(self) -> socket.socket:
        """The given socket; StartError if the number is not one."""
        try:
            os.set_inheritable(self._descriptor, False)
            self._socket = socket.socket(fileno=self._descriptor)
        except OSError as error:
            raise StartError(f"SIA_ENGINE_FD={self._descriptor} is not a connected socket: {error}") from error
        return self._socket

    def reopen(self) -> socket.socket:
        """There is only one."""
        raise EngineLost("the line to the engine is closed")

    def close(self) -> None:
        """Close it; a generation that runs is cancelled by that."""
        if self._socket is not None:
            self._socket.close()


class SpawnedLine:
    """A socket pair to an engine program, started with its end as descriptor 0 and restarted when it dies."""

    def __init__(self, command: Sequence[str], interrupt: Interrupt) -> None:
        self._command, self._interrupt = list(command), interrupt
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._started = 0.0
        self._failures = 0

    def open(self) -> socket.socket:
        """Start the program; StartError if it can't be run at all."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # a session of its own: Ctrl-C is for the agent, which then ends the engine itself
                self._process = subprocess.Popen(
                    self._command, stdin=theirs.fileno(), stdout=2, start_new_session=True, close_fds=True
                )
            except OSError as error:
                ours.close()
                raise StartError(f"the engine {self._command[0]!r} can't be started: {error}") from error
        self._socket, self._started = ours, time.monotonic()
        return ours

    def reopen(self) -> socket.socket:
        """End what is left of the program and start it again, each time in a row after a longer pause."""
        self._failures = self._failures + 1 if time.monotonic() - self._started < _STEADY else 1
        code = self.close()
        if self._failures > _ATTEMPTS:
            raise EngineLost(f"the engine ended {self._failures} times in a row, last with code {code}")
        pause = min(_BACKOFF_FIRST * 2 ** (self._failures - 1), _BACKOFF_MAX)
        end = time.monotonic() + pause
        while (left := end - time.monotonic()) > 0:
            if self._interrupt.request is not None:
                raise Cancelled("asked to end while the engine was down")
            time.sleep(min(left, 0.1))
        return self.open()

    def close(self) -> int | None:
        """Close the line, give the program two seconds to end, then kill its process group. Returns its exit code."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        process, self._process = self._process, None
        if process is None:
            return None
        try:
            return process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return process.wait()
