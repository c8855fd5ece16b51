"""Run one command in a sandbox to its end, with its output kept in a capped file."""

from __future__ import annotations

import os
import select
from pathlib import Path
from typing import Protocol

from orchestrator.instance_io import CHUNK, CappedFile
from sandbox.host import Host
from sandbox.process import Outcome, Sandbox
from sandbox.spec import SandboxSpec

POLL_MS = 200  # how late a stop is noticed


class Stop(Protocol):
    """Something like `threading.Event`: asked every fraction of a second."""

    def is_set(self) -> bool:
        """Whether it is time to stop."""


class Stopped(Exception):
    """`stop` was set: what ran was killed, gave no result, and can be run again."""


def run_captured(
    host: Host,
    spec: SandboxSpec,
    output: Path,
    cap: int,
    *,
    stop: Stop | None = None,
    keep_stderr: bool = True,
) -> Outcome:
    """Run `spec`, stdin empty, stdout (and stderr) to `output`, of which the first `cap` bytes are kept.

    Raises Stopped when `stop` is set, and what `Sandbox.start` raises.
    """
    reading, writing = os.pipe()
    kept = CappedFile(output, cap)
    try:
        try:
            sandbox = Sandbox.start(host, spec, stdout=writing, stderr=writing if keep_stderr else None)
        finally:
            os.close(writing)
        with sandbox:
            return _follow(sandbox, reading, kept, stop)
    finally:
        os.close(reading)
        kept.close()


def _follow(sandbox: Sandbox, reading: int, kept: CappedFile, stop: Stop | None) -> Outcome:
    os.set_blocking(reading, False)
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    while True:
        if stop is not None and stop.is_set():
            sandbox.kill()
            raise Stopped
        if poll.poll(POLL_MS):
            try:
                data = os.read(reading, CHUNK)
            except BlockingIOError:
                continue
            if data:
                kept.write(data)
                continue
            poll.unregister(reading)  # everybody closed it; the command may still run
            return _wait(sandbox, stop)
        outcome = sandbox.wait(0)
        if outcome is not None and not poll.poll(0):
            return outcome


def _wait(sandbox: Sandbox, stop: Stop | None) -> Outcome:
    while True:
        outcome = sandbox.wait(POLL_MS / 1000)
        if outcome is not None:
            return outcome
        if stop is not None and stop.is_set():
            sandbox.kill()
            raise Stopped
