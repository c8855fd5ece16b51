"""The dashboard on 64 busy instances, 2,000 trials, a journal of 10,000 entries: `benchmarks/run watch`, some minutes.

The real program runs on a terminal of its own (200×60), while this process writes what the owners of 64 instances
would write once a second. `SIA_WATCH_UPDATES=1000000 benchmarks/run watch` for another number of updates.
"""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import pty
import select
import signal
import statistics
import struct
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from benchmarks.figure import Figure
from orchestrator.watch.feed import Feed
from tests.watch import sample as samples
from tests.watch.driving import watching
from tests.watch.sample import Sample

COLUMNS, LINES = 200, 60
PRESSES = 60  # of each key
QUIET = 25.0  # seconds over which its processor time is counted
KEYS = {"instances": ("j", "k"), "detail": ("h", "l")}  # there and back
LIMIT_PRESS, LIMIT_CPU, LIMIT_POLL = 0.1, 0.15, 0.02  # seconds, cores, seconds


def measure() -> list[Figure]:
    """Answer to a key, processor time, a look at everything, memory."""
    with tempfile.TemporaryDirectory(prefix="sia-benchmark-") as directory:
        with samples.build(Path(directory), samples.LARGE, now=time.time()) as sample, _busy(sample):
            figures = [_press(sample, view) for view in KEYS]
            figures += [_processor(sample), _poll(sample)]
        with samples.build(Path(directory) / "again", samples.LARGE) as sample:
            figures.append(asyncio.run(_memory(sample)))
    return figures


@contextmanager
def _busy(sample: Sample) -> Iterator[None]:
    """The owners of all instances write once a second, in one transaction."""
    done = threading.Event()

    def write() -> None:
        while not done.wait(1.0):
            sample.tick(1.0)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


class Screen:
    """`sia watch` on a pseudo-terminal."""

    def __init__(self, sample: Sample, *words: str) -> None:
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(sample.home.checkout)
            environment = os.environ | {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
            os.execve(sys.executable, [sys.executable, "-P", "-m", "orchestrator", "watch", *words], environment)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        self.process = psutil.Process(self.pid)
        self.wait_for(b"instances", 30.0)
        self.settle()

    def wait_for(self, text: bytes, seconds: float) -> None:
        """Read until this was written."""
        seen, end = b"", time.monotonic() + seconds
        while text not in seen:
            if not select.select([self._terminal], [], [], max(0.0, end - time.monotonic()))[0]:
                raise RuntimeError(f"`sia watch` did not show {text!r} in {seconds:g} s: {seen[-2000:]!r}")
            seen += self._read()

    def _read(self) -> bytes:
        try:
            return os.read(self._terminal, 65536)
        except OSError:  # it has ended
            return b""

    def settle(self, quiet: float = 0.15, most: float = 3.0) -> None:
        """Read until it has written nothing for a moment."""
        end = time.monotonic() + most
        while time.monotonic() < end and select.select([self._terminal], [], [], quiet)[0]:
            if not self._read():
                return

    def press(self, key: str) -> float:
        """Seconds from a key to the first thing written after it."""
        self.settle(0.02, 0.3)
        start = time.perf_counter()
        os.write(self._terminal, key.encode())
        if not select.select([self._terminal], [], [], 5.0)[0]:
            raise RuntimeError(f"no answer to {key!r}")
        took = time.perf_counter() - start
        self._read()
        return took

    def drain(self, seconds: float) -> int:
        """Read whatever comes for a while; returns how many bytes that were."""
        end, count = time.monotonic() + seconds, 0
        while (rest := end - time.monotonic()) > 0:
            if select.select([self._terminal], [], [], rest)[0]:
                count += len(self._read())
        return count

    def close(self) -> None:
        """End it."""
        os.kill(self.pid, signal.SIGTERM)
        self.settle(0.5)
        os.waitpid(self.pid, 0)
        os.close(self._terminal)


def _press(sample: Sample, view: str) -> Figure:
    ident = [sample.long] if view == "detail" else []
    screen = Screen(sample, "--view", view, *ident)
    try:
        there, back = KEYS[view]
        times = [screen.press(key) for _ in range(PRESSES // 4) for key in (*[there] * 4, *[back] * 4)]
    finally:
        screen.close()
    took = statistics.median(times)
    slow = statistics.quantiles(times, n=20)[-1]
    detail = f"{took * 1000:.0f} ms median, {slow * 1000:.0f} ms in the slowest twentieth, {len(times)} keys"
    return Figure(f"watch: answer to a key ({view})", took / LIMIT_PRESS, 1.0, "100 ms", detail)


def _processor(sample: Sample) -> Figure:
    screen = Screen(sample)
    try:
        screen.drain(3.0)
        before = sum(screen.process.cpu_times()[:2])
        written = screen.drain(QUIET)
        used = (sum(screen.process.cpu_times()[:2]) - before) / QUIET
    finally:
        screen.close()
    detail = f"over {QUIET:g} s, in which it wrote {written // 1000} kB"
    return Figure("watch: processor time at 64 busy instances", used, LIMIT_CPU, "one core", detail)


def _poll(sample: Sample) -> Figure:
    times = []
    with Feed(sample.home) as feed:
        feed.poll()
        for _ in range(20):
            time.sleep(1.05)  # until the rows were written again
            start = time.perf_counter()
            feed.poll()
            times.append(time.perf_counter() - start)
    took = statistics.median(times)
    return Figure("watch: one look at everything", took / LIMIT_POLL, 1.0, "20 ms", f"{took * 1000:.1f} ms median")


async def _memory(sample: Sample) -> Figure:
    """Resident memory of the application (in this process) after so many changed rows, against after a tenth."""
    updates = int(os.environ.get("SIA_WATCH_UPDATES", "100000"))
    each = len(sample.running) - 2
    process, sizes = psutil.Process(), []
    looks = updates // each
    async with watching(sample, columns=COLUMNS, lines=LINES) as driver:
        for number in range(looks):
            sample.tick(1.0)
            await driver.look()
            if number % max(1, looks // 20) == 0:
                gc.collect()
                sizes.append(process.memory_info().rss / 1e6)
    early = statistics.median(sizes[2:4])
    detail = f"{early:.1f} MB early, {sizes[-1]:.1f} MB after {looks * each:,} updates of rows in {looks:,} looks"
    return Figure("watch: memory at the end", sizes[-1] / early, 1.05, "after a tenth of the updates", detail)
