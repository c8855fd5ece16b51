"""What is kept of a sandbox's network connections."""

from __future__ import annotations

import threading
from dataclasses import dataclass

KEPT = 500  # connections of one sandbox; later ones are counted


@dataclass(frozen=True)
class Connection:
    """One attempt to reach something through the proxy. `host` is the instance's text: printable, but not to be
    believed before `allowed` is true."""

    time: float  # seconds since the epoch, when it began
    protocol: str  # connect | http | socks5 | ? (it never said)
    host: str
    port: int
    allowed: bool
    detail: str  # why it was refused or failed; "" if neither
    address: str  # that was connected to; "" if none was
    sent: int  # bytes to the destination
    received: int
    seconds: float


class ConnectionLog:
    """The first `KEPT` connections, and how many there were besides."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[Connection] = []
        self._dropped = 0

    def add(self, connection: Connection) -> None:
        """Keep it, or count it."""
        with self._lock:
            if len(self._kept) < KEPT:
                self._kept.append(connection)
            else:
                self._dropped += 1

    @property
    def kept(self) -> tuple[Connection, ...]:
        """In the order in which they ended."""
        with self._lock:
            return tuple(self._kept)

    @property
    def dropped(self) -> int:
        """How many were not kept."""
        return self._dropped
