"""An engine program as the supervisor keeps it: started once, restarted when it dies, never outliving its keeper."""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path

from orchestrator import protocol
from orchestrator.errors import ConfigError

KEEPER = Path(__file__).with_name("keeper.py")
_FIRST_DELAY, _LONGEST_DELAY = 0.1, 10.0  # seconds between restarts
_SAME_TIME = 15.0  # seconds within which failures of several lines are one outage


class EngineDown(Exception):
    """The engine program does not run now, and why. `retry_after`: seconds until a restart is tried."""

    def __init__(self, reason: str, retry_after: float = 0.0) -> None:
        super().__init__(reason)
        self.retry_after = retry_after


class EngineHost:
    """One engine program for all lines. Thread-safe.

    `command` is an argv list, run in `cwd` with the supervisor's environment; `python` as its first word is this
    interpreter. It gets a listening unix socket as fd 0; what it prints goes to `log`. It runs in a session of its own,
    so Ctrl-C at the terminal does not end it before the trials that use it.
    """

    def __init__(self, name: str, command: Sequence[str], cwd: Path, log: Path) -> None:
        self.name, self.cwd, self.log = name, cwd, log
        self.command = tuple(command)
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self._address = -1  # an O_PATH descriptor of the socket's name, which is unlinked at once
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline = -1
        self._closed = False
        self._deaths = 0  # without an answer in between
        self._next_start = 0.0
        self._last_words = ""
        self._faults: deque[tuple[float, str, int]] = deque(maxlen=1000)

    def start(self) -> None:
        """Start the program; does not wait until it answers. Raises ConfigError if the command doesn't exist."""
        with self._lock:
            if self._process is None:
                self._argv()
                self._listen()
                self._launch()

    def wait_ready(self, timeout: float = 120.0) -> int:
        """Wait until it answers; its token limit. Raises ConfigError with its last words if it ends or stays silent."""
        self.start()
        deadline = time.monotonic() + timeout
        reason = f"no answer within {timeout:g} s"
        while time.monotonic() < deadline:
            with self._lock:
                died = self._died()
            if died:
                reason = died
                break
            try:
                return self.probe(max(0.05, deadline - time.monotonic()))
            except EngineDown as error:
                reason = str(error)
                time.sleep(0.01)
            except OSError as error:
                reason = f"no answer ({error})"
        fix = f"correct [engines.{self.name}] command in sia.toml; its output is in {self.log}"
        raise ConfigError(f"the engine does not start: {reason}", where=f"engine {self.name}", fix=fix)

    def probe(self, timeout: float = 10.0) -> int:
        """Ask for the token limit on a new connection. Raises EngineDown or OSError (a timeout too)."""
        deadline = time.monotonic() + timeout
        with self.connect() as line:
            line.settimeout(timeout)
            line.sendall(protocol.write_request(protocol.Request("token_limit", seed=0)))
            answer = b""
            while protocol.EOT_BYTE not in answer:
                line.settimeout(min(0.25, max(0.01, deadline - time.monotonic())))
                try:
                    part = line.recv(4096)
                except TimeoutError:
                    if time.monotonic() >= deadline:
                        raise
                    if not self.alive():
                        raise EngineDown(self._last_words) from None
                    continue
                if not part or len(answer) > 4096:
                    raise EngineDown(self._last_words or "it closed the connection")
                answer += part
        text = answer.partition(protocol.EOT_BYTE)[0].strip()
        if not text.isdigit():
            raise EngineDown(f"token limit {text[:60].decode('utf-8', 'replace')!r} is not a number")
        return int(text)

    def connect(self) -> socket.socket:
        """A new engine line. Restarts a dead program, with capped backoff. Raises EngineDown while it can't be had."""
        with self._lock:
            if self._closed or self._listener is None:
                raise EngineDown("the engine was closed" if self._closed else "the engine was not started")
            if reason := self._died():
                wait = self._next_start - time.monotonic()
                if wait > 0:
                    raise EngineDown(reason, wait)
                self._launch()
            line = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                line.settimeout(10.0)
                line.connect(f"/proc/self/fd/{self._address}")  # any path length, and nothing left on the disk
            except OSError as error:
                line.close()
                raise EngineDown(f"can't connect: {error.strerror or error}", 0.1) from None
            line.settimeout(None)
            return line

    def alive(self) -> bool:
        """Whether the program runs now."""
        with self._lock:
            return self._process is not None and not self._died()

    def answered(self) -> None:
        """A line got an answer: the program works, the next restart is quick."""
        self._deaths = 0

    def report_fault(self, group: str, line: int) -> float:
        """A line's request failed on this side; `line` identifies it, `group` says whose it is. Returns the time that
        was noted."""
        now = time.monotonic()
        self._faults.append((now, group, line))
        return now

    def others_failed(self, group: str, when: float) -> int:
        """How many lines of other groups failed at the same time as one of this group did at `when`."""
        faults = tuple(self._faults)
        return len({line for at, other, line in faults if other != group and abs(at - when) <= _SAME_TIME})

    def close(self) -> None:
        """Stop the program and all it started; they are gone when this returns."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._stop(self._process)
            if self._listener is not None:
                self._listener.close()
            if self._address >= 0:
                os.close(self._address)
                self._address = -1

    def __enter__(self) -> EngineHost:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _argv(self) -> list[str]:
        word = self.command[0]
        if not self.cwd.is_dir():
            what = f"its directory {self.cwd} does not exist"
            raise ConfigError(what, where=f"engine {self.name}", fix="start from inside the repository")
        found = sys.executable if word == "python" else shutil.which(str(self.cwd / word) if "/" in word else word)
        if found is None:
            what = f"command {word!r} does not exist or is not executable"
            fix = f"install it, or correct [engines.{self.name}] command in sia.toml"
            raise ConfigError(what, where=f"engine {self.name}", fix=fix)
        return [found, *self.command[1:]]

    def _listen(self) -> None:
        with tempfile.TemporaryDirectory(prefix="sia-engine-") as directory:
            handle = os.open(directory, os.O_PATH | os.O_DIRECTORY)
            try:
                self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._listener.bind(f"/proc/self/fd/{handle}/line")  # sun_path takes 108 bytes at most
                self._listener.listen(128)
                self._address = os.open("line", os.O_PATH, dir_fd=handle)
            finally:
                os.close(handle)

    def _launch(self) -> None:
        assert self._listener is not None
        self._close_lifeline()
        self._turn_away()
        argv = self._argv()
        reader, self._lifeline = os.pipe()
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # never write into the user's checkout
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(KEEPER), str(reader), *argv],
                    stdin=self._listener.fileno(),
                    stdout=log,
                    stderr=log,
                    cwd=self.cwd,
                    env=environment,
                    pass_fds=(reader,),
                    start_new_session=True,
                )
        except OSError as error:
            what = f"can't be started: {error.strerror}"
            raise ConfigError(what, where=f"engine {self.name}", fix="see docs/campaign-file.md") from None
        finally:
            os.close(reader)
        self._next_start = 0.0

    def _turn_away(self) -> None:
        """Close connections that the program which died had not taken: one of them may hold the request that ends
        whatever answers it, and its asker has gone. Those who still wait connect again. Nobody else accepts now."""
        assert self._listener is not None
        while select.select([self._listener], [], [], 0)[0]:
            self._listener.accept()[0].close()

    def _died(self) -> str | None:
        """Why the program is not running, or None if it is. Counts each death once. The lock is held."""
        if self._process is None:
            return None
        code = self._process.poll()
        if code is None:
            return None
        if not self._next_start:
            self._deaths += 1
            delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(self._deaths - 1, 10))
            self._next_start = time.monotonic() + delay
            how = f"was killed by signal {code - 128}" if code > 128 else f"ended with exit code {code}"
            self._last_words = f"it {how}{self._tail()}"
        return self._last_words

    def _tail(self) -> str:
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - 2000))
                text = file.read().decode("utf-8", "replace")
        except OSError:
            return ""
        lines = [line for line in text.splitlines() if line.strip()][-3:]
        return (
            ": " + " | ".join("".join(c if c.isprintable() else "?" for c in line) for line in lines) if lines else ""
        )

    def _close_lifeline(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1

    def _stop(self, process: subprocess.Popen[bytes]) -> None:
        try:
            os.write(self._lifeline, b"T")
        except OSError:
            pass
        try:
            process.wait(4.0)
        except subprocess.TimeoutExpired:
            self._close_lifeline()
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()  # its child dies by the parent-death signal
                process.wait()
        self._close_lifeline()
