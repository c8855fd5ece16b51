"""Pid 1: the program itself, on each architecture that can be run here, and what it lets go of inside."""

from __future__ import annotations

import hashlib
import os
import platform
import select
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox import runner
from sandbox.errors import CannotIsolate
from sandbox.host import Host
from sandbox.process import Sandbox
from sandbox.spec import SandboxSpec

ROOT = Path(__file__).resolve().parents[2]
SOON = 0.1  # seconds from a close inside to the EOF outside


@pytest.fixture(params=sorted(runner.PINNED))
def prefix(request: pytest.FixtureRequest, tmp_path: Path) -> list[str]:
    """Words that run pid 1 of one architecture."""
    if request.param == platform.machine():
        emulator = []
    else:
        found = shutil.which(f"qemu-{request.param}-static")
        if not found:
            pytest.skip(f"no emulator for {request.param}")
        emulator = [found]
    file = tmp_path / "pid1"
    file.write_bytes(runner.program(request.param))
    file.chmod(0o755)
    return [*emulator, str(file)]


class Started:
    """Pid 1 outside of any sandbox: the protocol, seen from both ends."""

    def __init__(self, prefix: list[str], command: tuple[str, ...], processes: int | None, path: str) -> None:
        self.control, theirs = socket.socketpair()
        self.control.settimeout(20)
        self.output, stdout = os.pipe()
        self.errors, stderr = os.pipe()
        null = os.open(os.devnull, os.O_RDONLY)
        words = runner.argv(theirs.fileno(), (null, stdout, stderr), processes, command)[1:]
        fds = (theirs.fileno(), null, stdout, stderr)
        self.process = subprocess.Popen([*prefix, *words], pass_fds=fds, env={"PATH": path})
        theirs.close()
        for descriptor in (null, stdout, stderr):
            os.close(descriptor)
        self.said = b""

    def end(self) -> tuple[int, bytes, bytes, bytes]:
        """Exit code of pid 1, what it reported, and the command's stdout and stderr."""
        code = self.process.wait(timeout=60)
        while data := self.control.recv(100):
            self.said += data
        self.control.close()
        with open(self.output, "rb") as output, open(self.errors, "rb") as errors:
            return code, self.said, output.read(), errors.read()


@pytest.mark.parametrize(
    ("command", "report", "output", "errors"),
    [
        (("true",), b"exit 000", b"", b""),
        (("/bin/sh", "-c", "echo out; echo err >&2; exit 42"), b"exit 042", b"out\n", b"err\n"),
        (("sh", "-c", "kill -SEGV $$"), b"exit 139", b"", b""),
        (("sh", "-c", "kill -INT $$; echo ignored"), b"exit 130", b"", b""),
        (("sh", "-c", "ls /proc/self/fd | wc -w"), b"exit 000", b"4\n", b""),
        (("nosuch",), b"exit 127", b"", b"nosuch: not found\n"),
        (("/nosuch/x",), b"exit 127", b"", b"/nosuch/x: not found\n"),
        (("",), b"exit 127", b"", b": not found\n"),
        (("/etc/passwd",), b"exit 126", b"", b"/etc/passwd: permission denied\n"),
        (("plain", "word"), b"exit 000", b"script word\n", b""),
    ],
)
def test_protocol(
    prefix: list[str], tmp_path: Path, command: tuple[str, ...], report: bytes, output: bytes, errors: bytes
) -> None:
    script = tmp_path / "bin" / "plain"  # a script without #!, as shells run it
    script.parent.mkdir()
    script.write_text("echo script $1\n")
    script.chmod(0o755)
    started = Started(prefix, command, None, f"/nosuch:{'x' * 5000}:{script.parent}:/usr/bin:/bin")
    assert started.control.recv(100) == b"ready\n"
    started.control.send(b"go\n")
    code, said, out, err = started.end()
    assert (code, said, out, err) == (0, b"run\n" + report + b"\n", output, errors)


@pytest.mark.parametrize("word", [b"", b"no\n", b"g"])
def test_no_go_no_command(prefix: list[str], word: bytes) -> None:
    started = Started(prefix, ("sh", "-c", "echo started"), None, "/usr/bin:/bin")
    assert started.control.recv(100) == b"ready\n"
    started.control.send(word)
    started.control.shutdown(socket.SHUT_WR)
    assert started.end() == (125, b"", b"", b"")


def test_bound_on_processes(prefix: list[str]) -> None:
    started = Started(prefix, ("sh", "-c", "ulimit -p"), 77, "/usr/bin:/bin")
    assert started.control.recv(100) == b"ready\n"
    started.control.send(b"go\n")
    assert started.end()[2] == b"77\n"


def test_the_shipped_program_is_what_the_source_gives(tmp_path: Path) -> None:
    """With another compiler the bytes differ: then only say so."""
    copy = tmp_path / "sandbox" / "pid1"
    shutil.copytree(ROOT / "sandbox" / "pid1", copy)
    (tmp_path / "scripts").mkdir()
    shutil.copy(ROOT / "scripts" / "build-pid1", tmp_path / "scripts")
    machine = platform.machine()
    if not shutil.which("cc"):
        pytest.skip("no compiler")
    (copy / machine).unlink()
    subprocess.run([tmp_path / "scripts" / "build-pid1"], check=True, capture_output=True)
    built = (copy / machine).read_bytes()
    version = subprocess.run(["cc", "--version"], check=True, capture_output=True, text=True).stdout.splitlines()[0]
    if "12.2.0" not in version:
        pytest.skip(f"another compiler: {version}")
    assert hashlib.sha256(built).hexdigest() == runner.PINNED[machine]


def test_a_changed_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = platform.machine()
    (tmp_path / machine).write_bytes(runner.program(machine) + b"\0")
    monkeypatch.setattr(runner, "PLACE", tmp_path)
    runner.program.cache_clear()
    try:
        with pytest.raises(CannotIsolate, match="not the pid 1 that was checked"):
            runner.program(machine)
        (tmp_path / machine).unlink()
        with pytest.raises(CannotIsolate, match="missing"):
            runner.program(machine)
        with pytest.raises(CannotIsolate, match="no pid 1 for riscv64"):
            runner.program("riscv64")
    finally:
        runner.program.cache_clear()


class Inside:
    """A sandbox whose command closes what it is told to, and lives on."""

    def __init__(self, host: Host, close: str) -> None:
        script = f"read -r word; exec {close}; sleep 3600"
        self.engine, engine_end = socket.socketpair()
        pipes = [os.pipe() for _ in range(3)]
        self.stdin, self.stdout, self.stderr = pipes[0][1], pipes[1][0], pipes[2][0]
        spec = SandboxSpec(("sh", "-c", script), "/tmp")
        theirs = pipes[0][0], pipes[1][1], pipes[2][1]
        passed = {5: engine_end.fileno()}
        self.box = Sandbox.start(host, spec, stdin=theirs[0], stdout=theirs[1], stderr=theirs[2], pass_fds=passed)
        engine_end.close()
        for descriptor in theirs:
            os.close(descriptor)

    def close(self) -> None:
        """Everything."""
        self.box.kill()
        self.engine.close()
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.close(descriptor)


@pytest.fixture
def started(request: pytest.FixtureRequest, host: Host) -> Iterator[Inside]:
    found = Inside(host, request.param)
    yield found
    found.close()


def _ended(descriptor: int | socket.socket) -> bool:
    """Whether EOF (or, for a pipe that we write to, that nobody reads) is seen soon."""
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    events = poller.poll(SOON * 1000)
    return bool(events) and bool(events[0][1] & select.POLLHUP or events[0][1] & select.POLLERR)


@pytest.mark.sandbox
@pytest.mark.usefixtures("mode")
@pytest.mark.parametrize(
    ("started", "name"),
    [("5>&-", "engine"), (">&-", "stdout"), ("2>&-", "stderr"), ("<&-", "stdin")],
    indirect=["started"],
    ids=["engine", "stdout", "stderr", "stdin"],
)
def test_what_the_command_closes_is_closed_outside(started: Inside, name: str) -> None:
    others = {"engine", "stdout", "stderr", "stdin"} - {name}
    time.sleep(0.05)
    assert not any(_ended(getattr(started, other)) for other in [*others, name])
    os.write(started.stdin, b"go\n")
    assert _ended(getattr(started, name))
    assert not any(_ended(getattr(started, other)) for other in others)
    assert started.box.wait(0) is None
