"""Running shell scripts side by side, so that nothing they do can hang the loop.

A script ends when its shell ends, not when its pipes close: background children may hold them open for ever. Those
children live on (a server that the agent started is meant to), and a thread reads away what they still write.
"""

from __future__ import annotations

import codecs
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from instance.signals import Interrupt
from instance.text import beginning, ending, join, original, shown_size, visible

DEFAULT_TIMEOUT = 60.0  # seconds
DEFAULT_LIMIT = 20_000  # characters of each stream
_CHUNK = 65_536
_LAST_READS = 16  # chunks read after the shell has ended: what the largest pipe can still hold
_KILL_PATIENCE = 5.0  # seconds for a killed process to go; one in uninterruptible sleep is left behind
_ARGUMENT_MAX = 100_000  # bytes; execve(2) takes no single argument above 128 KiB


class Script(NamedTuple):
    """What to run. `timeout` in seconds, `limit` in characters of each stream."""

    text: str
    timeout: float = DEFAULT_TIMEOUT
    limit: int = DEFAULT_LIMIT


class ScriptResult(NamedTuple):
    """What came of it. `exit_code` is 128 + signal for a script that a signal ended, None if it was never known."""

    stdout: str = ""
    stderr: str = ""
    exit_code: int | None = None
    timed_out: bool = False
    truncated: bool = False
    interrupted: bool = False


class Capture:
    """The head and the tail of a stream of bytes, at most `limit` characters as they are shown, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._limit, self._tail_size = limit, limit // 2
        self._decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self._head = ""  # the first `limit` characters
        self._tail = ""  # the last ones of what came after
        self._total = 0

    def feed(self, data: bytes, final: bool = False) -> None:
        """Take in the next bytes."""
        text = self._decoder.decode(data, final)
        self._total += len(text)
        room = self._limit - len(self._head)
        if room > 0:
            self._head += text[:room]
            text = text[room:]
        if text and self._tail_size:
            self._tail = (self._tail + text)[-self._tail_size :]

    @property
    def truncated(self) -> bool:
        """Whether something was left out."""
        return self._total > self._limit or shown_size(self._head) > self._limit

    def text(self) -> str:
        """What is kept, fit for XML; a line in the middle names what was left out."""
        if not self.truncated:
            return visible(self._head)
        most = self._limit - self._tail_size
        head = beginning(visible(self._head[:most]), most)
        last = (self._head + self._tail)[-self._tail_size :] if self._tail_size else ""
        tail = ending(visible(last), self._tail_size)
        return join(head, self._total - len(original(head)) - len(original(tail)), tail)


class _Job:
    """One running script."""

    def __init__(self, script: Script, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.pidfd = os.pidfd_open(process.pid)
        self.deadline = time.monotonic() + script.timeout
        self.captures: dict[int, Capture] = {}
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            os.set_blocking(stream.fileno(), False)
            self.captures[stream.fileno()] = Capture(script.limit)
        self.killed_at: float | None = None
        self.timed_out = self.interrupted = False

    def kill(self) -> None:
        """SIGKILL to the script's whole process group, once. The leader is not reaped yet, so the id is still its."""
        if self.killed_at is None:
            self.killed_at = time.monotonic()
            try:
                os.killpg(self.process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def result(self) -> ScriptResult:
        """The outcome, once the shell has ended (or was given up)."""
        code = self.process.returncode
        out, err = self.captures.values()
        return ScriptResult(
            out.text(),
            err.text(),
            128 - code if code is not None and code < 0 else code,
            self.timed_out,
            out.truncated or err.truncated,
            self.interrupted,
        )


class ScriptRunner:
    """Runs scripts in `directory` with `environment`; each in its own session and process group, stdin empty."""

    def __init__(self, environment: Mapping[str, str], interrupt: Interrupt, directory: Path | None = None) -> None:
        self._environment, self._interrupt, self._directory = dict(environment), interrupt, directory
        self._shell = "/bin/bash" if Path("/bin/bash").exists() else "/bin/sh"
        self._drain = Drain()

    def run(self, scripts: Sequence[Script]) -> list[ScriptResult]:
        """Run all side by side and wait for all. A script that can't be started is a result too, never an exception."""
        started = [self._start(script) for script in scripts]
        running = [job for job in started if isinstance(job, _Job)]
        with selectors.DefaultSelector() as selector:
            selector.register(self._interrupt, selectors.EVENT_READ, None)
            for job in running:
                selector.register(job.pidfd, selectors.EVENT_READ, job)
                for descriptor in job.captures:
                    selector.register(descriptor, selectors.EVENT_READ, job)
            while running:
                for key, _ in selector.select(self._enforce(running)):
                    self._serve(selector, key, running)
                for job in [job for job in running if _given_up(job)]:
                    self._finish(selector, job, running)
        return [job.result() if isinstance(job, _Job) else job for job in started]

    def _start(self, script: Script) -> _Job | ScriptResult:
        text = script.text.encode("utf-8", "surrogatepass")
        file = -1
        try:
            if len(text) > _ARGUMENT_MAX:
                file = os.memfd_create("script")
                _write_all(file, text)
                argv: list[bytes] = [self._shell.encode(), b"/proc/self/fd/%d" % file]
            else:
                argv = [self._shell.encode(), b"-c", text]
            process = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                cwd=self._directory,
                env=self._environment,
                start_new_session=True,
                pass_fds=(file,) if file >= 0 else (),
            )
            return self._follow(script, process)
        except (OSError, ValueError) as error:
            return ScriptResult(stderr=visible(f"The script could not be started: {error}"), exit_code=126)
        finally:
            if file >= 0:
                os.close(file)

    @staticmethod
    def _follow(script: Script, process: subprocess.Popen[bytes]) -> _Job:
        """Watch a process that was started. One that can't be watched (no descriptor is left) is not left behind."""
        try:
            return _Job(script, process)
        except OSError:
            os.killpg(process.pid, signal.SIGKILL)
            with process:  # closes its pipes and reaps it
                raise

    def _enforce(self, running: Sequence[_Job]) -> float:
        """Kill what is over its time; return the seconds until the next deadline."""
        now, cut = time.monotonic(), self._interrupt.script_deadline()
        nearest = 3600.0
        for job in running:
            if job.killed_at is None:
                if now >= job.deadline:
                    job.timed_out = True
                    job.kill()
                elif cut is not None and now >= cut:
                    job.interrupted = True
                    job.kill()
            deadline = job.deadline if cut is None else min(job.deadline, cut)
            if job.killed_at is not None:
                deadline = job.killed_at + _KILL_PATIENCE
            nearest = min(nearest, deadline - now)
        return max(0.0, nearest)

    def _serve(self, selector: selectors.BaseSelector, key: selectors.SelectorKey, running: list[_Job]) -> None:
        job: _Job | None = key.data
        if job is None:
            self._interrupt.drain()
        elif job not in running:
            return
        elif key.fd == job.pidfd:
            self._finish(selector, job, running)
        elif not _read_some(key.fd, job.captures[key.fd]):
            selector.unregister(key.fd)

    def _finish(self, selector: selectors.BaseSelector, job: _Job, running: list[_Job]) -> None:
        """The shell has ended: read what its pipes hold now, and give pipes that others hold open to the drain."""
        if not _given_up(job):
            job.process.wait()
        running.remove(job)
        watched = selector.get_map()
        for stream in (job.process.stdout, job.process.stderr):
            assert stream is not None
            descriptor = stream.fileno()
            capture, still_open = job.captures[descriptor], descriptor in watched
            for _ in range(_LAST_READS):
                if not still_open:
                    break
                data = _read(descriptor)
                if data is None:
                    break
                capture.feed(data)
                still_open = bool(data)
            capture.feed(b"", final=True)
            if descriptor in watched:
                selector.unregister(descriptor)
            if still_open:
                self._drain.add(os.dup(descriptor))
            stream.close()
        selector.unregister(job.pidfd)
        os.close(job.pidfd)


class Drain:
    """Reads and drops what background children still write, so that they neither block nor die of SIGPIPE."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._selector: selectors.BaseSelector | None = None

    def add(self, descriptor: int) -> None:
        """Take over a non-blocking read end. The thread starts with the first one and ends with the last."""
        with self._lock:
            if self._selector is None:
                self._selector = selectors.DefaultSelector()
                try:
                    threading.Thread(target=self._loop, name="drain", daemon=True).start()
                except RuntimeError:  # no thread is left to be had: then the children meet a closed pipe
                    self._selector.close()
                    self._selector = None
                    os.close(descriptor)
                    return
            self._selector.register(descriptor, selectors.EVENT_READ)

    def _loop(self) -> None:
        selector = self._selector
        assert selector is not None
        while True:
            for key, _ in selector.select(0.5):  # epoll sees descriptors that are added while it waits
                data = _read(key.fd)
                if data == b"":
                    with self._lock:
                        selector.unregister(key.fd)
                        os.close(key.fd)
            time.sleep(0.01)  # a child that floods may wait; it must not take a core from the agent
            with self._lock:
                if not selector.get_map():
                    selector.close()
                    self._selector = None
                    return


def script_environment(environment: Mapping[str, str], code: Path) -> dict[str, str]:
    """The agent's environment without what belongs to the agent alone: its engine line and its own code's path."""
    kept = {name: value for name, value in environment.items() if name not in ("SIA_ENGINE_FD", "SIA_DETERMINISTIC")}
    paths = [path for path in kept.pop("PYTHONPATH", "").split(os.pathsep) if path and Path(path) != code]
    if paths:
        kept["PYTHONPATH"] = os.pathsep.join(paths)
    return kept


def _given_up(job: _Job) -> bool:
    return job.killed_at is not None and time.monotonic() > job.killed_at + _KILL_PATIENCE


def _read(descriptor: int) -> bytes | None:
    """Bytes, b"" at the end, None if there is nothing now."""
    try:
        return os.read(descriptor, _CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _read_some(descriptor: int, capture: Capture) -> bool:
    """Read one chunk into `capture`; False at the end of the stream."""
    data = _read(descriptor)
    if data:
        capture.feed(data)
    return data != b""


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
