"""The socket to an instance: hostile on the other side. Frames in with a bound, replies out without ever blocking."""

from __future__ import annotations

import hashlib
import select
import socket
import time
from dataclasses import dataclass

from orchestrator.descriptors import refuse_descriptors
from orchestrator.protocol import EOT_BYTE, MAX_REQUEST

MAX_FRAME = 16 * MAX_REQUEST  # bytes of one request that are taken off the line; one that goes on is its last
_PART = 1 << 18
_HEAD = 4000  # bytes kept of a frame that is too large


class HungUp(Exception):
    """Nobody reads at the other end any more, or this side was told to stop."""


@dataclass(frozen=True)
class Frame:
    """One request as bytes. Where it was too large (`whole` False) or cut off by the end of the line, a part of it."""

    data: bytes
    size: int
    sha256: str
    whole: bool = True
    ended: bool = True  # False: the line was closed inside the frame


class InstanceEnd:
    """Our end of the line. Holds at most one request and one reply; more is left in the kernel's buffers."""

    def __init__(self, line: socket.socket) -> None:
        self.line = line
        line.setblocking(False)
        refuse_descriptors(line)
        self.last_activity = time.monotonic()
        self._in = bytearray()
        self._out = bytearray()
        self._closed_in = False
        self._calling: float | None = None  # since when: a call that never waits, normally
        self._abandoned = False

    def read(self) -> Frame | None:
        """Wait for the next request; None at the end of the line. Larger ones are taken off the line but not kept;
        after MAX_FRAME bytes without an end nothing more is read."""
        searched = 0
        while (end := self._in.find(EOT_BYTE, searched)) < 0:
            searched = len(self._in)
            if searched > MAX_REQUEST:
                return self._too_large()
            if not self._receive():
                rest = bytes(self._in)
                self._in.clear()
                return Frame(rest[:_HEAD], len(rest), hashlib.sha256(rest).hexdigest(), ended=False) if rest else None
        frame = bytes(memoryview(self._in)[:end])
        del self._in[: end + 1]
        if len(frame) > MAX_REQUEST:
            return Frame(frame[:_HEAD], end, hashlib.sha256(frame).hexdigest(), whole=False)
        return Frame(frame, end, hashlib.sha256(frame).hexdigest())

    def _too_large(self) -> Frame:
        digest, size, head = hashlib.sha256(), 0, bytes(self._in[:_HEAD])
        while (end := self._in.find(EOT_BYTE)) < 0:
            digest.update(self._in)
            size += len(self._in)
            self._in.clear()
            self._closed_in = self._closed_in or size >= MAX_FRAME
            if not self._receive():
                return Frame(head, size, digest.hexdigest(), whole=False, ended=False)
        digest.update(memoryview(self._in)[:end])
        size += end
        del self._in[: end + 1]
        return Frame(head, size, digest.hexdigest(), whole=False)

    def _receive(self) -> bool:
        """Add what comes next to `_in`; False at the end of the line. Raises HungUp when nobody waits for it."""
        while not self._closed_in:
            self._calling = time.monotonic()
            try:
                part = self.line.recv(_PART)
            except BlockingIOError:
                self._calling = None
                self._poll(select.POLLIN, None)
                continue
            except OSError:
                part = b""
            self._calling = None
            if self._abandoned:
                raise HungUp
            self.last_activity = time.monotonic()
            if not part:
                self._closed_in = True
                break
            self._in += part
            return True
        return False

    def _poll(self, events: int, milliseconds: float | None) -> int:
        poller = select.poll()
        poller.register(self.line, events)
        ready = poller.poll(milliseconds)
        return ready[0][1] if ready else 0

    def abandon(self, seconds: float) -> bool:
        """Whether the reading thread has hung that long in a call that never waits, since a file that was sent along is
        closed there (orchestrator/descriptors.py). Then what it brings home at last is not looked at any more."""
        since = self._calling
        self._abandoned = self._abandoned or (since is not None and time.monotonic() - since > seconds)
        return self._abandoned

    @property
    def waiting(self) -> bool:
        """Something is queued that the instance has not taken."""
        return bool(self._out)

    def queue(self, data: bytes) -> None:
        """Add to what goes out; nothing is sent yet."""
        self._out += data

    def push(self) -> None:
        """Send what the instance takes right now. Raises HungUp if nobody is there."""
        while self._out:
            try:
                sent = self.line.send(memoryview(self._out)[:_PART])
            except BlockingIOError:
                return
            except OSError:
                raise HungUp from None
            self.last_activity = time.monotonic()
            del self._out[:sent]

    def flush(self) -> None:
        """Send all that is queued, however long the instance takes to read it. Raises HungUp."""
        self.push()
        while self._out:
            if self._poll(select.POLLOUT, None) & (select.POLLHUP | select.POLLERR):
                raise HungUp
            self.push()

    def pause(self, seconds: float) -> None:
        """Wait, but not for an instance that went away. Raises HungUp."""
        if self._poll(0, seconds * 1000):
            raise HungUp

    def close(self) -> None:
        """Close the socket, and with it what was sent along and never received. Done by the thread that reads."""
        self._calling = time.monotonic()
        self.line.close()
        self._calling = None

    def shutdown(self) -> None:
        """Wake whoever waits here, from any thread: they see the end of the line."""
        try:
            self.line.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
