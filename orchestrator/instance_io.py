"""An instance's stdin, stdout and stderr: moved by one thread, in bounded pieces, whatever the instance does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import struct
import termios
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

CHUNK = 65536
DRAIN_SECONDS = 5.0


class CappedFile:
    """A file of ours that keeps the first `cap` bytes of what it is given, and says how much it dropped."""

    def __init__(self, path: Path, cap: int) -> None:
        """Create or replace `path`."""
        self._file = path.open("wb", buffering=0)
        self._room = cap
        self.dropped = 0

    def write(self, data: bytes) -> None:
        """Keep what fits."""
        kept = data[: self._room]
        self._room -= len(kept)
        self.dropped += len(data) - len(kept)
        if kept:
            try:
                self._file.write(kept)
            except OSError:  # our disk is full: the run goes on, the log is shorter
                self.dropped += len(kept)
                self._room = 0

    def close(self) -> None:
        """Note what is missing, and close. Can be called again."""
        if self._file.closed:
            return
        if self.dropped:
            with contextlib.suppress(OSError):
                self._file.write(b"\n[%d more bytes were dropped]\n" % self.dropped)
        self._file.close()


class Pump:
    """The thread that moves an instance's stdin, stdout and stderr. It holds at most one chunk of output."""

    def __init__(self, feed: int, out: int, log: int, stdout: Callable[[bytes], None], stderr: CappedFile) -> None:
        self._feed, self._out, self._log = feed, out, log
        self._stdout, self._stderr = stdout, stderr
        self._queue: deque[bytes] = deque()
        self._queued = 0
        self._feed_broken = False
        self._stopping = False
        self._lock = threading.Lock()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._closed = False
        for descriptor in (feed, out, log):
            os.set_blocking(descriptor, False)
        self._thread = threading.Thread(target=self._run, name="instance-io", daemon=True)
        self._thread.start()

    def send(self, data: bytes) -> None:
        """Queue, and wake the thread."""
        with self._lock:
            if self._closed or not data:
                return
            self._queue.append(data)
            self._queued += len(data)
            os.eventfd_write(self._wake, 1)

    def untaken(self) -> int:
        """Bytes in the pipe and in the queue."""
        with self._lock:
            if self._closed:
                return self._queued
            in_pipe: int = struct.unpack("i", fcntl.ioctl(self._feed, termios.FIONREAD, b"\0" * 4))[0]
            return in_pipe + self._queued

    def drain(self) -> None:
        """Wait until the output has been read to its end (all writers are dead, so this takes no time)."""
        self._thread.join(DRAIN_SECONDS)
        if self._thread.is_alive():  # a descriptor of ours leaked into another process: don't wait for that one
            with self._lock:
                self._stopping = True
                os.eventfd_write(self._wake, 1)
            self._thread.join()

    def close(self) -> None:
        """Release everything; bytes still in the pipe are counted into the queue."""
        with self._lock:
            if self._closed:
                return
            in_pipe: int = struct.unpack("i", fcntl.ioctl(self._feed, termios.FIONREAD, b"\0" * 4))[0]
            self._queued += in_pipe
            self._closed = True
        self._stderr.close()
        for descriptor in (self._feed, self._out, self._log, self._wake):
            os.close(descriptor)

    def _run(self) -> None:
        outputs = {self._out: self._stdout, self._log: self._stderr.write}
        with selectors.DefaultSelector() as selector:
            for descriptor in (*outputs, self._wake):
                selector.register(descriptor, selectors.EVENT_READ)
            while outputs and not self._stopping:
                for key, _ in selector.select():
                    if key.fd == self._wake:
                        with contextlib.suppress(BlockingIOError):
                            os.eventfd_read(self._wake)
                        self._watch_feed(selector)
                    elif key.fd == self._feed:
                        self._write()
                        self._watch_feed(selector)
                    elif key.fd in outputs and not self._pass_on(key.fd, outputs[key.fd]):
                        selector.unregister(key.fd)
                        del outputs[key.fd]

    def _watch_feed(self, selector: selectors.BaseSelector) -> None:
        """Wait for room in the pipe only while something is queued."""
        with self._lock:
            wanted = bool(self._queue) and not self._feed_broken
        watched = self._feed in selector.get_map()
        if wanted and not watched:
            selector.register(self._feed, selectors.EVENT_WRITE)
        elif watched and not wanted:
            selector.unregister(self._feed)

    def _write(self) -> None:
        with self._lock:
            if not self._queue:
                return
            try:
                written = os.write(self._feed, self._queue[0][:CHUNK])
            except BlockingIOError:
                return
            except BrokenPipeError:  # it closed its stdin or ended: what is queued stays untaken
                self._feed_broken = True
                return
            self._queued -= written
            rest = self._queue.popleft()[written:]
            if rest:
                self._queue.appendleft(rest)

    def _pass_on(self, descriptor: int, sink: Callable[[bytes], None]) -> bool:
        try:
            data = os.read(descriptor, CHUNK)
        except BlockingIOError:
            return True
        if data:
            sink(data)
        return bool(data)
