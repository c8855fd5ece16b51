"""A paused sandbox stands still, whatever it does against it; it goes on where it was; nothing survives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sandbox import freeze, usage
from sandbox.errors import SandboxFailed
from sandbox.freeze import Freezer
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import Limits, SandboxSpec

pytestmark = [pytest.mark.sandbox, pytest.mark.usefixtures("mode")]
WAIT = 10.0
COUNT = "import time\nwhile True:\n    print('x', flush=True)\n    time.sleep(0.005)\n"
CHAIN = (  # each process forks and ends at once
    "import os, time\nif os.fork():\n    time.sleep(3600)\n"
    "while True:\n    if os.fork():\n        os._exit(0)\n    os.write(1, b'x')\n"
)
HIDDEN = (  # the first thread has ended: the process looks like a zombie, and works on
    "import ctypes, os, threading, time\n"
    "def work():\n    while True:\n        os.write(1, b'x')\n        time.sleep(0.005)\n"
    "threading.Thread(target=work).start()\nctypes.CDLL(None).pthread_exit(None)\n"
)
WAKER = (  # one of them wakes the other all the time
    "import os, signal, time\nchild = os.fork()\n"
    "while True:\n    os.write(1, b'x')\n    os.kill(child or os.getppid(), signal.SIGCONT)\n    time.sleep(0.002)\n"
)
FORKS = "(while :; do sleep 0.02 & sleep 0.005; echo x; done) & while :; do echo x; sleep 0.01; done"


@contextmanager
def running(host: Host, script: str, *, limits: Limits | None = None) -> Iterator[tuple[Sandbox, int]]:
    """The sandbox, and the end from which its output is read without waiting."""
    python = "import" in script
    command = (sys.executable, "-I", "-c", script) if python else ("sh", "-c", script)
    spec = SandboxSpec(command, "/tmp", limits=limits or Limits(), python=Path(sys.executable) if python else None)
    read, write = os.pipe()
    try:
        with Sandbox.start(host, spec, stdout=write) as sandbox:
            os.close(write)
            os.set_blocking(read, False)
            yield sandbox, read
    finally:
        os.close(read)


def taken(read: int) -> int:
    """Bytes that have come since the last call."""
    count = 0
    while True:
        try:
            piece = os.read(read, 1 << 16)
        except BlockingIOError:
            return count
        if not piece:
            return count
        count += len(piece)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.mark.parametrize(
    "script", [COUNT, CHAIN, HIDDEN, WAKER, FORKS], ids=["counts", "chain", "hidden", "waker", "forks"]
)
def test_stands_still_and_goes_on(host: Host, script: str) -> None:
    with running(host, script) as (sandbox, read):
        until(lambda: taken(read))
        sandbox.pause()
        sandbox.pause()  # again: nothing happens
        taken(read)
        before = usage.tree(sandbox.pid)
        cpu = usage.cpu_seconds(before)
        time.sleep(0.15)
        assert taken(read) == 0
        assert (usage.tree(sandbox.pid), usage.cpu_seconds(before)) == (before, cpu)
        sandbox.resume()
        until(lambda: taken(read))
        sandbox.pause()
        begun = time.monotonic()
        sandbox.kill()
        assert time.monotonic() - begun < 2.0
        assert not any(usage.stat_fields(pid) for pid in before)


def test_its_wall_clock_stands_still_too(host: Host) -> None:
    with running(host, COUNT, limits=Limits(seconds=0.8)) as (sandbox, _):
        time.sleep(0.3)
        sandbox.pause()
        assert sandbox.deadline is None
        assert sandbox.wait(1.0) is None
        sandbox.resume()
        outcome = sandbox.wait(WAIT)
    assert outcome is not None and outcome.limit == "seconds"
    assert 0.75 < outcome.seconds < 1.7


def test_what_had_stopped_itself_stays_stopped(host: Host) -> None:
    with running(host, "sh -c 'kill -STOP $$; echo woken' & while :; do echo x; sleep 0.01; done") as (sandbox, read):
        until(lambda: any(usage.stat_fields(pid)[:1] == ["T"] for pid in usage.tree(sandbox.pid)))
        sandbox.pause()
        sandbox.resume()
        time.sleep(0.1)
        text = os.read(read, 1 << 16)
        assert b"woken" not in text and b"x" in text


def test_what_can_t_be_stopped_goes_on(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(host, COUNT) as (sandbox, read):
        until(lambda: taken(read))
        monkeypatch.setattr(freeze, "PATIENCE", 0.0)
        with pytest.raises(SandboxFailed, match="faster than they can be stopped"):
            sandbox.pause()
        assert sandbox.pauses.since is None
        taken(read)
        until(lambda: taken(read))


def test_ended_ones_can_t_be_paused(host: Host) -> None:
    with running(host, "exit 3") as (sandbox, _):
        sandbox.wait(WAIT)
        with pytest.raises(SandboxFailed, match="has ended"):
            sandbox.pause()
        sandbox.resume()


def test_killed_while_it_is_being_paused(host: Host) -> None:
    for _ in range(5):
        with running(host, FORKS) as (sandbox, read):
            until(lambda read=read: taken(read))  # type: ignore[misc]

            def pause(sandbox: Sandbox = sandbox) -> None:
                try:
                    sandbox.pause()
                except SandboxFailed:
                    pass

            thread = threading.Thread(target=pause)
            thread.start()
            sandbox.kill()
            thread.join(WAIT)
            assert not thread.is_alive() and sandbox.wait(0) is not None


OWNER = """\
import sys, time
from pathlib import Path
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import SandboxSpec
with Host.detect(Path(sys.argv[1])) as host:
    sandbox = Sandbox.start(host, SandboxSpec(("sh", "-c", "sleep 3600 & sleep 3600"), "/tmp"))
    time.sleep(0.1)
    sandbox.pause()
    print(sandbox.pid, flush=True)
    time.sleep(3600)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["Ctrl-C", "kill"])
def test_the_owner_s_end_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    argv = [sys.executable, "-c", OWNER, str(tmp_path / "state")]
    root = Path(__file__).resolve().parents[2]
    with subprocess.Popen(argv, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as owner:
        assert owner.stdout is not None
        pids = usage.tree(int(owner.stdout.readline()))
        owner.send_signal(number)
        owner.wait(WAIT)
    until(lambda: not any(fields[0] != "Z" for pid in pids if (fields := usage.stat_fields(pid))))


def test_a_group_is_frozen_by_the_kernel(tmp_path: Path) -> None:
    """Where there is no cgroup of version 2: what is written there, and that a group that can't be is let go."""
    for name, text in (("cgroup.freeze", "0"), ("cgroup.events", "populated 1\nfrozen 1\n")):
        (tmp_path / name).write_text(text)
    freezer = Freezer(os.getpid(), tmp_path)
    freezer.freeze()
    assert (tmp_path / "cgroup.freeze").read_text() == "1"
    freezer.thaw()
    assert (tmp_path / "cgroup.freeze").read_text() == "0"
    freezer.release()
    freezer.freeze()
    assert (tmp_path / "cgroup.freeze").read_text() == "0"


def test_a_number_that_is_somebody_else_s_is_never_signalled() -> None:
    """This process plays pid 1; another one of ours, that is none of its children, is left alone."""
    freezer = Freezer(os.getpid(), None)
    assert not freezer._is_ours(os.getppid())
    freezer._began = 0  # its pid 1 ended, and the number was used again
    assert not freezer._is_ours(os.getpid())
    assert freeze._states(1 << 22) == []
