"""The socket to an instance: hostile on the other side. Frames in with a bound, replies out without ever blocking."""

from __future__ import annotations

import hashlib
import select
import socket
import time
from dataclasses import dataclass

from orchestrator.protocol import EOT_BYTE, MAX_REQUEST

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
        self.last_activity = time.monotonic()
        self._in = bytearray()
        self._out = bytearray()
        self._closed_in = False

    def read(self) -> Frame | None:
        """Wait for the next request; None at the end of the line. Larger ones are taken off the line but not kept."""
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
            if not self._receive():
                return Frame(head, size, digest.hexdigest(), whole=False, ended=False)
        digest.update(memoryview(self._in)[:end])
        size += end
        del self._in[: end + 1]
        return Frame(head, size, digest.hexdigest(), whole=False)

    def _receive(self) -> bool:
        """Add what comes next to `_in`; False at the end of the line."""
        while not self._closed_in:
            try:
                part = self.line.recv(_PART)
            except BlockingIOError:
                self._poll(select.POLLIN, None)
                continue
            except OSError:
                part = b""
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

    def shutdown(self) -> None:
        """Wake whoever waits here, from any thread: they see the end of the line."""
        try:
            self.line.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
