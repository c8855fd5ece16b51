"""The thread that moves an instance's streams: bounded memory, nothing lost, nothing that blocks the caller."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.instance_io import CappedFile, Pump


@dataclass
class Ends:
    """A pump, and the other ends of its pipes (-1 once closed)."""

    pump: Pump
    stdin: int
    stdout: int
    stderr: int
    received: bytearray = field(default_factory=bytearray)
    count: int = 0

    def close_outputs(self) -> None:
        for name in ("stdout", "stderr"):
            if getattr(self, name) >= 0:
                os.close(getattr(self, name))
                setattr(self, name, -1)


@pytest.fixture
def ends(tmp_path: Path) -> Iterator[Ends]:
    stdin, feed = os.pipe()
    out, stdout = os.pipe()
    log, stderr = os.pipe()
    made: Ends

    def take(data: bytes) -> None:
        made.count += len(data)
        made.received += data[: max(0, 1000 - len(made.received))]

    made = Ends(Pump(feed, out, log, take, CappedFile(tmp_path / "log", 100)), stdin, stdout, stderr)
    yield made
    made.close_outputs()
    os.close(made.stdin)
    made.pump.drain()
    made.pump.close()
    made.pump.close()


def test_big_message_is_fed_as_it_is_read(ends: Ends) -> None:
    message = bytes(range(256)) * 4096  # 1 MB: sixteen times what a pipe holds
    begun = time.monotonic()
    ends.pump.send(message)
    ends.pump.send(b"more")
    assert time.monotonic() - begun < 0.5
    assert ends.pump.untaken() == len(message) + 4
    received = b""
    while len(received) < len(message) + 4:
        received += os.read(ends.stdin, 100_000)
    assert received == message + b"more"
    assert ends.pump.untaken() == 0


def test_untaken_counts_the_pipe_even_after_the_reader_is_gone(ends: Ends) -> None:
    ends.pump.send(b"x" * 300)
    assert os.read(ends.stdin, 100) == b"x" * 100
    os.close(ends.stdin)
    ends.stdin = os.open(os.devnull, os.O_RDONLY)
    assert ends.pump.untaken() == 200
    ends.pump.send(b"y" * 50)
    time.sleep(0.05)
    assert ends.pump.untaken() == 250
    ends.close_outputs()
    ends.pump.drain()
    ends.pump.close()
    assert ends.pump.untaken() == 250


def test_flood_does_not_grow_memory(ends: Ends, tmp_path: Path) -> None:
    block = b"z" * 65536
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(4000):  # 262 MB
        os.write(ends.stdout, block)
    os.write(ends.stderr, b"e" * 250)
    ends.close_outputs()
    ends.pump.drain()
    assert ends.count == 4000 * 65536
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20_000  # kB
    ends.pump.close()
    assert (tmp_path / "log").read_bytes() == b"e" * 100 + b"\n[150 more bytes were dropped]\n"


def test_a_leaked_writer_does_not_hold_up_the_end(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.instance_io.DRAIN_SECONDS", 0.2)
    begun = time.monotonic()
    ends.pump.drain()
    assert time.monotonic() - begun < 2
