"""`nursery.py STATE ROUNDS PARALLEL SEED [memory]`: kills supervisors right after a launch; counts what outlives them.

Orphans become children of this process (a subreaper), however they are called and however far they have come: so
nothing of a killed supervisor is left as soon as there are no more children here, and no survivor can be overlooked.
Prints JSON: rounds, survivors, the slowest end in seconds, and how many sandboxes had been started in time.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from sandbox import bwrap, filter, runner
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import Limits, Overlay, SandboxSpec

PR_SET_CHILD_SUBREAPER = 36
PATIENCE = 30.0  # seconds until a process counts as a survivor
LATEST = 0.010  # seconds from the launch to SIGKILL


def supervise(state: Path, say: int) -> None:
    """In a child: a supervisor that launches until it is killed."""
    host = Host.detect(state)
    lower = state / "lower"
    lower.mkdir()
    host.own(lower)
    os.write(say, b"g")
    for number in range(1000):
        limits = Limits(upper="memory" if sys.argv[5:] == ["memory"] else "disk")
        upper, work = host.make_upper(host.space(state / f"uppers{number}", limits), "0")
        overlays = (Overlay("/app", (lower,), upper, work),)
        spec = SandboxSpec(("sleep", "3600"), "/app", overlays=overlays, limits=limits)
        Sandbox.start(host, spec)
        os.write(say, b"s")


def start(state: Path) -> tuple[int, int]:
    """Fork a supervisor; returns its pid and a pipe that tells how far it is, once it is ready to launch."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        try:
            supervise(state, write)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(write)
    return pid, read


def children_left() -> int:
    """Reap what has ended; how many children are there still?"""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return len(file.read().split())


def main() -> None:
    """Rounds of several supervisors each."""
    state, rounds, parallel, generator = (
        Path(sys.argv[1]),
        int(sys.argv[2]),
        int(sys.argv[3]),
        random.Random(sys.argv[4]),
    )
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    bwrap.find(), filter.program(), runner.program()  # remembered, so that no supervisor has to find them again
    survivors, slowest, launched, done = 0, 0.0, 0, 0
    while done < rounds:
        started = [start(state / f"{done + number}") for number in range(parallel)]
        for pid, pipe in started:
            assert os.read(pipe, 1) == b"g"
            time.sleep(generator.uniform(0, LATEST))
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        while left := children_left():
            if time.monotonic() - killed > PATIENCE:
                break
            time.sleep(0.001)
        slowest = max(slowest, time.monotonic() - killed)
        survivors += left
        for _, pipe in started:
            launched += os.read(pipe, 1000).count(b"s")
            os.close(pipe)
        done += parallel
    print(json.dumps({"rounds": done, "survivors": survivors, "slowest": slowest, "launched": launched}))


if __name__ == "__main__":
    main()
