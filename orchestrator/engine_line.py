"""One connection to an engine program: ask, stream the answer through, tell an engine's failure from an instance's."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass

from orchestrator.engines.host import EngineDown, EngineHost
from orchestrator.instance_end import HungUp, InstanceEnd
from orchestrator.protocol import MAX_ANSWER, EngineUsage
from orchestrator.replies import ReplyReader

ATTEMPTS = 3
_PAUSES = (0.1, 0.5)  # seconds between attempts, at least
_LONGEST_PAUSE = 5.0
_USAGE_WAIT = 5.0  # seconds for the usage after a reply
_TICK = 0.25  # seconds between looks at whether the program still runs
_GONE = select.POLLHUP | select.POLLERR | select.POLLNVAL


@dataclass(frozen=True)
class Answer:
    """What an engine gave for one request. `error`: code and message; `fault` says in words how the engine failed."""

    text: str
    error: tuple[str, str] | None
    usage: EngineUsage | None
    fault: str | None = None
    hung_up: bool = False  # the instance went away: the generation was cancelled
    silent: float = 0.0  # seconds since the engine's last byte, when the instance went away


class _Fault(Exception):
    def __init__(self, reason: str, *, again: bool = True, pause: float = 0.0) -> None:
        super().__init__(reason)
        self.again, self.pause = again, pause


class EngineLine:
    """The line to the engine of one instance. One request at a time.

    `silence`: seconds without a byte after which an engine counts as failed.
    """

    def __init__(self, host: EngineHost, silence: float) -> None:
        self._host, self._silence = host, silence
        self._line: socket.socket | None = None
        self.heard: float | None = None  # monotonic time of its last byte (or of the request); None = nothing asked

    def ask(self, wire: bytes, instance: InstanceEnd, stream: Callable[[str], None] | None) -> Answer:
        """Send one request, and again if the engine fails before it gave anything. With `stream` text is passed on to
        the instance as it comes, and told there."""
        for attempt in range(ATTEMPTS):
            given: list[str] = []
            reader = ReplyReader()
            try:
                self._converse(wire, instance, reader, given, stream)
            except _Fault as fault:
                self.drop()
                again = fault.again and not any(given) and attempt + 1 < ATTEMPTS
                if not again:
                    return Answer("".join(given), ("engine", str(fault)), reader.usage, fault=str(fault))
                try:
                    instance.pause(min(_LONGEST_PAUSE, max(_PAUSES[attempt], fault.pause)))
                except HungUp:
                    return Answer("", None, None, hung_up=True)
            except HungUp:
                self.drop()  # closing the line cancels the generation
                silent = time.monotonic() - (self.heard or time.monotonic())
                return Answer("".join(given), None, None, hung_up=True, silent=silent)
            else:
                return self._answer(reader, "".join(given))
            finally:
                self.heard = None
        raise AssertionError("unreachable")

    def drop(self) -> None:
        """Close the connection; the next request opens another."""
        if self._line is not None:
            self._line.close()
            self._line = None

    def _answer(self, reader: ReplyReader, text: str) -> Answer:
        if reader.usage is None or reader.left_over:
            self.drop()  # whatever still comes belongs to nothing
        error = reader.error
        if error and error[0] not in ("too_long", "bad_request"):
            reason = error[1] or "the engine reported an error"  # its budget is not this instance's budget
            return Answer(text, ("engine", reason), reader.usage, fault=reason)
        self._host.answered()
        return Answer(text, error, reader.usage)

    def _connected(self) -> socket.socket:
        if self._line is None:
            try:
                self._line = self._host.connect()
            except EngineDown as error:
                raise _Fault(f"the engine does not run: {error}", pause=error.retry_after) from None
            self._line.setblocking(False)
        return self._line

    def _converse(
        self,
        wire: bytes,
        instance: InstanceEnd,
        reader: ReplyReader,
        given: list[str],
        stream: Callable[[str], None] | None,
    ) -> None:
        self.heard = time.monotonic()
        line = self._connected()
        unsent, size = memoryview(wire), 0
        while True:
            poller = select.poll()
            poller.register(line, select.POLLIN | (select.POLLOUT if unsent else 0))
            poller.register(instance.line, select.POLLOUT if instance.waiting else 0)
            ready = dict(poller.poll(_TICK * 1000))
            seen = ready.get(instance.line.fileno(), 0)
            if seen & _GONE:
                raise HungUp
            if seen:
                instance.push()
            events = ready.get(line.fileno(), 0)
            if events & select.POLLOUT:
                unsent = unsent[_send(line, unsent) :]
            if events & (select.POLLIN | _GONE):
                data = _receive(line)
                if not data and not reader.ended:
                    raise _Fault("the engine closed the line in mid-answer" if size else "the engine closed the line")
                self.heard = time.monotonic()
                text = reader.feed(data)
                given.append(text)
                if text and stream is not None:
                    stream(text)
                    instance.queue(text.encode())
                    instance.push()
                size += len(data)
                if reader.done or not data:
                    return
                if size > MAX_ANSWER:
                    raise _Fault(f"an answer of more than {MAX_ANSWER} bytes without an end", again=False)
            elif self._overdue(reader, size):
                return

    def _overdue(self, reader: ReplyReader, size: int) -> bool:
        """True if the reply is complete but for its usage. Raises _Fault if nothing can be expected any more."""
        quiet = time.monotonic() - (self.heard or 0.0)
        if reader.ended:
            return quiet > _USAGE_WAIT
        if quiet > self._silence:
            raise _Fault(f"no answer from the engine for {self._silence:g} s", again=False)
        if not size and not self._host.alive():
            raise _Fault("the engine died before it answered")
        return False


def _send(line: socket.socket, data: memoryview) -> int:
    try:
        return line.send(data[: 1 << 20])
    except BlockingIOError:
        return 0
    except OSError:
        raise _Fault("the engine closed the line") from None


def _receive(line: socket.socket) -> bytes:
    try:
        return line.recv(1 << 18)
    except OSError:
        return b""  # reset by a program that died: the same as its end
