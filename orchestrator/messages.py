"""The user's messages to the main instance: an append-only log in which every byte has an offset.

Who read how far is an offset into this file (`main_data.stdin_offset` in the ledger), so that a restart, a promotion
or a rollback goes on exactly there.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orchestrator.durable import sync_directory
from orchestrator.errors import ConfigError, UsageError

MESSAGE_LIMIT = 1024 * 1024  # bytes of one message


@dataclass(frozen=True)
class Sent:
    """Where a message lies in the log: bytes [start, end)."""

    start: int
    end: int


class MessageLog:
    """The log at `path`, which is made at the first message. Several processes may append at the same time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, text: str) -> Sent:
        """Add one message, ended by a newline, durably. A write that fails (full disk) leaves the log as it was.

        Raises UsageError for a message that is empty, too long or not text, ConfigError when it can't be written.
        """
        content = check_message(text)
        try:
            with self._locked() as descriptor:
                start = os.fstat(descriptor).st_size
                content = _mend(descriptor, start) + content
                try:
                    _write_all(descriptor, content)
                    os.fsync(descriptor)
                except OSError:
                    os.ftruncate(descriptor, start)
                    raise
                return Sent(start, start + len(content))
        except OSError as error:
            fix = "free some space, or make the state directory writable"
            raise ConfigError(f"the message can't be stored: {error.strerror}", where=str(self.path), fix=fix) from None

    def read(self, offset: int, limit: int) -> bytes:
        """Whole messages from `offset`, at most `limit` bytes (one longer message comes in pieces); b"" at the end."""
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                piece = file.read(limit)
        except FileNotFoundError:
            return b""
        if len(piece) == limit and b"\n" not in piece:
            return piece
        return piece[: piece.rfind(b"\n") + 1]  # a message whose writer died in the middle is not fed

    def size(self) -> int:
        """Bytes in the log: the offset that the next message gets."""
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    @contextmanager
    def _locked(self) -> Iterator[int]:
        new = not self.path.exists()
        self.path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if new:
                sync_directory(self.path.parent)
            yield descriptor
        finally:
            os.close(descriptor)


def check_message(text: str) -> bytes:
    """One message as it is fed to an instance. Raises UsageError if it is empty, too long or not text."""
    try:
        content = text.rstrip("\n").encode("utf-8")
    except UnicodeEncodeError:
        raise UsageError("the message is not valid UTF-8", where="message", fix="send text") from None
    if not content.strip():
        raise UsageError("the message is empty", where="message", fix="send some text")
    if b"\0" in content or len(content) > MESSAGE_LIMIT:
        what = f"the message has NUL bytes or is larger than {MESSAGE_LIMIT} bytes"
        raise UsageError(what, where="message", fix="send text; put large data into a file of the agent's workdir")
    return content + b"\n"


def _mend(descriptor: int, size: int) -> bytes:
    """The newline that a writer which died in the middle did not get to write."""
    return b"" if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n" else b"\n"


def _write_all(descriptor: int, content: bytes) -> None:
    while content:
        content = content[os.write(descriptor, content) :]
