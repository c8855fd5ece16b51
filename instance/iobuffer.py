"""The user's messages and the agent's answers."""

from __future__ import annotations

import os
import select
import time
from abc import ABC, abstractmethod

from instance.text import decode, visible

_CHUNK = 65_536
_TAKEN_MAX = 1 << 20  # bytes held here; what the user sends beyond that waits in the pipe
_ATOMIC = 4096  # bytes (PIPE_BUF); a pipe that poll(2) calls writable takes that much without blocking


class IOBuffer(ABC):
    """Where text from the user waits, and where text to the user goes. Nothing here blocks."""

    taken = 0
    """Bytes taken from the user's side since the first start. Saved with the state, it tells a supervisor after a crash
    which bytes of its own log have arrived for good."""

    @abstractmethod
    def read(self) -> str:
        """All text that waits, fit for XML; afterwards nothing waits."""

    @abstractmethod
    def write(self, content: str) -> None:
        """Send `content` to the user."""

    @abstractmethod
    def buffer_length(self) -> int:
        """How many characters wait to be read."""

    def take(self) -> bool:
        """Fetch what has arrived; True if the buffer changed and must be saved."""
        return False

    def flush(self, seconds: float = 0.0) -> bool:
        """Send what can be sent, for at most `seconds`; True if nothing is left to send."""
        return True

    def get_state(self) -> tuple[bytes, bytes]:
        """Bytes that were taken but not read, and bytes that were written but not sent."""
        return b"", b""

    def set_state(self, incoming: bytes, outgoing: bytes) -> None:  # noqa: B027
        """Go on from a saved state."""


class StandardIOBuffer(IOBuffer):
    """The process's own standard input and output.

    Bytes are taken from the descriptor only when the agent looks (`take`, once per iteration), and the agent saves its
    state right after that, before it does anything else: a message is in the pipe or in the state, never in neither.
    """

    def __init__(self, stdin: int = 0, stdout: int = 1) -> None:
        self._stdin, self._stdout = stdin, stdout
        self._incoming, self._outgoing = bytearray(), bytearray()
        self._ended = self._gone = False  # the user's side was closed for reading, for writing
        self._poll = select.poll()
        self._poll.register(stdin, select.POLLIN)
        self._room = select.poll()
        self._room.register(stdout, select.POLLOUT)
        self._length = 0

    def take(self) -> bool:
        """Move what waits at the descriptor into the buffer."""
        before = len(self._incoming)
        while not self._ended and len(self._incoming) < _TAKEN_MAX and self._poll.poll(0):
            try:
                data = os.read(self._stdin, _CHUNK)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            self._ended = not data
            self.taken += len(data)
            self._incoming += data
        if len(self._incoming) != before:
            self._measure()
        return len(self._incoming) != before

    def wait(self, seconds: float) -> None:
        """Wait until something has come in or ended; for runs whose first context must not depend on time."""
        self._poll.poll(seconds * 1000)

    def read(self) -> str:
        """All whole characters; the first bytes of one that has not arrived in full stay."""
        self.take()
        whole = len(self._incoming) - (0 if self._ended else unfinished(self._incoming))
        data = bytes(self._incoming[:whole])
        del self._incoming[:whole]
        self._length = 0
        return visible(decode(data))

    def write(self, content: str) -> None:
        """Queue UTF-8 text and send what the reader takes now."""
        self._outgoing += content.encode("utf-8", "replace")
        self.flush()

    def buffer_length(self) -> int:
        """Characters that `read` would give now."""
        return self._length

    def flush(self, seconds: float = 0.0) -> bool:
        """Send queued bytes while the reader takes them. A reader that has gone away loses them."""
        end = time.monotonic() + seconds
        while self._outgoing and not self._gone:
            if not self._room.poll(max(0.0, end - time.monotonic()) * 1000):
                return False
            try:
                sent = os.write(self._stdout, self._outgoing[:_ATOMIC])
            except BlockingIOError:
                if time.monotonic() >= end:
                    return False
                continue
            except OSError:
                self._gone = True
                break
            del self._outgoing[:sent]
        if self._gone:
            self._outgoing.clear()
        return True

    def get_state(self) -> tuple[bytes, bytes]:
        """Bytes that were taken but not read, and bytes that were written but not sent."""
        return bytes(self._incoming), bytes(self._outgoing)

    def set_state(self, incoming: bytes, outgoing: bytes) -> None:
        """Go on from a saved state."""
        self._incoming[:], self._outgoing[:] = incoming, outgoing
        self._measure()

    def _measure(self) -> None:
        whole = len(self._incoming) - (0 if self._ended else unfinished(self._incoming))
        self._length = len(decode(bytes(self._incoming[:whole])))


class WebIOBuffer(IOBuffer):
    """Both directions in memory, for a program that sits between the agent and a person."""

    def __init__(self) -> None:
        self._stdin = self._stdout = ""

    def read(self) -> str:
        """All text that was appended."""
        text, self._stdin = self._stdin, ""
        return visible(text)

    def write(self, content: str) -> None:
        """Keep `content` until it is cleared."""
        self._stdout += content

    def buffer_length(self) -> int:
        """How many characters wait to be read."""
        return len(self._stdin)

    def append_stdin(self, content: str) -> None:
        """Text from the person."""
        self._stdin += content

    def get_stdout(self) -> str:
        """All text written since it was cleared."""
        return self._stdout

    def clear_stdout(self) -> None:
        """Forget the text that was written."""
        self._stdout = ""

    def get_state(self) -> tuple[bytes, bytes]:
        """Both texts as bytes."""
        return self._stdin.encode("utf-8", "surrogateescape"), self._stdout.encode("utf-8", "surrogateescape")

    def set_state(self, incoming: bytes, outgoing: bytes) -> None:
        """Go on from a saved state."""
        self._stdin, self._stdout = decode(incoming), decode(outgoing)


def unfinished(data: bytes | bytearray) -> int:
    """How many bytes at the end begin a UTF-8 character that is not complete (0 to 3)."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte >= 0xC0:
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return back if needed > back else 0
        if byte < 0x80:
            return 0
    return 0
