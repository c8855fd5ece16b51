"""A running sandbox."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import socket
import stat
import struct
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandbox import arguments, gate, interpreter, rootfs, runner, watch
from sandbox.connections import Connection
from sandbox.errors import CannotIsolate, SandboxFailed
from sandbox.freeze import Freezer
from sandbox.host import Host
from sandbox.memory import Group
from sandbox.pauses import Pauses
from sandbox.spec import SandboxSpec

READY_TIMEOUT = 60.0  # seconds from the request to pid 1's `ready`; only a stuck file system takes so long
FIRST = 64  # descriptors that bwrap reads and closes
SETUP_TEXT = 1 << 16
CREDENTIALS = struct.Struct("3i")
MEGABYTE = 1 << 20


@dataclass(frozen=True)
class Outcome:
    """How a sandbox ended. Exactly one of `exit_code`, `signal`, `setup_error` is set, except that a sandbox that was
    killed from outside (`kill()`, or a limit, named in `limit`) has `signal` 9."""

    exit_code: int | None  # of the command
    signal: int | None  # that ended the command; a command that exits with 128+n by itself is reported like this too
    limit: str | None  # memory | disk | inodes | seconds | processes: which bound ended it
    setup_error: str | None  # the command was never executed; says why
    memory_enforcer: str  # what bounded tree memory in this run; "none" if memory_mb was None
    seconds: float  # from GO to the end
    peak_memory_mb: float | None  # of the whole tree, where it is known
    connections: tuple[Connection, ...] = ()  # through the allow-list of `SandboxSpec.network`; the first of them
    connections_dropped: int = 0  # how many more there were


class Sandbox:
    """One sandbox, from launch until nothing of it is left. Methods may be called from any thread."""

    def __init__(self, host: Host, spec: SandboxSpec, control: socket.socket, setup: int, group: Group | None) -> None:
        """Use `start`."""
        self.host, self.spec, self.group = host, spec, group
        self.pid = 0  # of pid 1 of the sandbox, as seen from the host
        self.limit: str | None = None
        self.use = watch.Use()
        self.pauses = Pauses()
        self._control, self._setup = control, setup
        self._launch = 0
        self._groups = list(group.joins) if group else []
        self._inside = not host.root and host.ramdisks.used_by(spec)  # as root all of them are launched there
        self._init: int | None = None  # pidfd of pid 1
        self._command: int | None = None  # pidfd of the command
        self._went = 0.0
        self._status: int | None = None
        self._ran = self._killed = False
        self._refusal: str | None = None
        self._buffer = ""
        self._lock = threading.RLock()
        self._steps = threading.Lock()  # pause and resume, one at a time
        self._freezer: Freezer | None = None
        self._outcome: Outcome | None = None
        self.gate: gate.Gate | None = None

    @classmethod
    def start(
        cls,
        host: Host,
        spec: SandboxSpec,
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        pass_fds: Mapping[int, int] | None = None,
    ) -> Sandbox:
        """Launch; returns when the command has been told to go. None = /dev/null. `pass_fds`: number inside → our
        descriptor (sockets and pipes only). The caller keeps and closes its descriptors.

        Raises CannotIsolate for a specification that can't be isolated, SandboxFailed if something it names is not
        there; what fails later is in the Outcome (`setup_error`).
        """
        passed = dict(pass_fds or {})
        _check_descriptors(passed)
        host.bubblewrap.verify()
        arguments.check(spec)
        way_out = gate.Gate.of(spec, host.resolve)
        spec = way_out.through(spec) if way_out else spec
        control, *standard = [number for number in range(3, FIRST) if number not in passed][:4]
        descriptors = arguments.Descriptors(FIRST)
        options_number = descriptors.add(_options(host, spec, descriptors))
        argv = ["bwrap", "--args", options_number, "--", *_first_process(spec, control, standard)]

        with contextlib.ExitStack() as stack, contextlib.ExitStack() as ends:
            ours, theirs = _control_channel()
            stack.callback(theirs.close)
            ends.callback(ours.close)
            setup, setup_end = _setup_pipe()
            stack.callback(os.close, setup_end)
            ends.callback(os.close, setup)
            null = _closed_later(stack, os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC))
            files = {n: _closed_later(stack, _memory_file(text)) for n, text in descriptors.contents.items()}
            targets = {
                0: null,
                1: null,
                2: setup_end,
                control: theirs.fileno(),
                **dict(zip(standard, (null if fd is None else fd for fd in (stdin, stdout, stderr)), strict=True)),
                **passed,
                **files,
            }
            group = _group(host, spec)
            sandbox = cls(host, spec, ours, setup, group)
            ends.pop_all()  # they are the sandbox's from here on
            try:
                if way_out:
                    sandbox.gate, targets[gate.NUMBER] = way_out, way_out.connect()
                sandbox._launched_with(argv, targets)
            except BaseException:
                sandbox._release()
                raise
        if way_out:
            way_out.open()
        host.live.add(sandbox)
        sandbox._go()
        return sandbox

    def _launched_with(self, argv: Sequence[str], targets: Mapping[int, int]) -> None:
        """Ask the spawner to start it; `targets`: number of a descriptor in it → ours."""
        message: dict[str, object] = {
            "program": self.host.program,
            "argv": argv,
            "targets": list(targets),
            "limits": _limits(self.spec),
            "groups": self._groups,
            "inside": self._inside,
        }
        self._launch = self.host.launcher.launch(message, list(targets.values()))

    @property
    def ended(self) -> bool:
        """Whether `wait` has returned an outcome, or would at once."""
        return self._outcome is not None or self._poll(0)

    @property
    def deadline(self) -> float | None:
        """When its wall clock runs out, on the monotonic clock; None if it has no bound, or while it is paused."""
        seconds = self.spec.limits.seconds
        if seconds is None or not self._went or self.pauses.since is not None:
            return None
        return self._went + seconds + self.pauses.total

    def pause(self) -> None:
        """Stop every process where it is; the wall clock does not run meanwhile. Nothing happens if it is paused.

        Raises SandboxFailed if they can't be stopped (all run again then), or if it has ended.
        """
        with self._steps:
            if self.pauses.since is not None:
                return
            freezer = self._freezer or Freezer(self.pid, self.group.freezable if self.group else None)
            if not self.pid or self.ended:
                raise SandboxFailed("it has ended", where="pause")
            self._freezer = freezer
            self.pauses.begin()
            try:
                freezer.freeze()
            except SandboxFailed:
                self.pauses.end()
                raise

    def resume(self) -> None:
        """Let them go on. Nothing happens if it is not paused."""
        with self._steps:
            if self._freezer is not None and self.pauses.since is not None:
                self._freezer.thaw()
                self.pauses.end()

    def hold(self) -> None:
        """Of a paused sandbox: stop what escaped, if anything. Does not wait for a pause that is under way."""
        if self.pauses.since is not None and self._steps.acquire(blocking=False):
            try:
                if self._freezer is not None and self.pauses.since is not None:
                    self._freezer.hold()
            finally:
                self._steps.release()

    def _go(self) -> None:
        """Wait for pid 1's `ready`; from then on it dies with the spawner, so it may be told to go."""
        if not self._await(lambda: self.pid, READY_TIMEOUT):
            if not self._poll(0):
                self._refusal = f"not ready after {READY_TIMEOUT:g} s"
                self.host.launcher.kill(self._launch)
            return
        if not self.host.launcher.sets_limits(self._groups, inside=self._inside):
            for name, value in _limits(self.spec).items():
                _lower(self.pid, getattr(resource, f"RLIMIT_{name}"), value)
        self._went = time.monotonic()
        with contextlib.suppress(OSError):
            self._control.send(b"go\n")
        watch.add(self)

    def _await(self, condition: object, timeout: float) -> bool:
        """Read the control channel until `condition()` holds; False when the sandbox ended or time ran out first."""
        assert callable(condition)
        deadline = time.monotonic() + timeout
        while True:
            with self._lock:
                if self._outcome is None:
                    self._listen()
                if condition():
                    return True
                if self._outcome is not None:
                    return False
                poller = select.poll()
                poller.register(self._control, select.POLLIN)
                poller.register(self._setup, 0)  # POLLHUP comes unasked: bwrap and pid 1 are gone
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            events = poller.poll(min(left, 1.0) * 1000)
            if any(fd == self._setup and event & select.POLLHUP for fd, event in events):
                with self._lock:
                    if self._outcome is None:
                        self._listen()
                    return bool(condition())

    def _listen(self) -> None:
        """Take what pid 1 has reported. Called with the lock held."""
        while True:
            try:
                data, ancillary, _, _ = self._control.recvmsg(256, socket.CMSG_SPACE(CREDENTIALS.size))
            except BlockingIOError:
                return
            except OSError:
                return
            if not data:
                return
            sender = next((CREDENTIALS.unpack(d[: CREDENTIALS.size])[0] for _, k, d in ancillary if k == 2), 0)
            for line in data.decode("ascii", "replace").split("\n"):
                self._report(line.split(), sender)

    def _report(self, words: list[str], sender: int) -> None:
        if words == ["ready"]:
            self.pid = sender
            with contextlib.suppress(OSError):
                self._init = os.pidfd_open(sender)  # it waits for us, so the number is still its own
        elif words == ["run"]:
            self._ran = True
            with contextlib.suppress(OSError):
                self._command = os.pidfd_open(sender)
        elif words[:1] == ["exit"] and len(words) == 2 and words[1].isdigit():
            self._status = int(words[1])

    def wait(self, timeout: float | None = None) -> Outcome | None:
        """The outcome, as soon as nothing of the sandbox is left; None after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._outcome is None:
            left = 1.0 if deadline is None else min(1.0, max(0.0, deadline - time.monotonic()))
            if self._poll(left):
                self._finish()
            elif deadline is not None and time.monotonic() >= deadline:
                return None
        return self._outcome

    def _poll(self, seconds: float) -> bool:
        """Whether bwrap and pid 1 are gone: both hold the other end of the set-up pipe as their stderr."""
        with self._lock:
            if self._outcome is not None:
                return True
            poller = select.poll()
            poller.register(self._setup, 0)
        return bool(poller.poll(seconds * 1000))

    def _finish(self) -> None:
        """Everything is gone: say how it ended, and release what we hold."""
        with self._lock:
            if self._outcome is not None:
                return
            self._listen()
            ended = time.monotonic()
            if self.gate:
                self.gate.close()
            limit = self.limit or watch.last_look(self)
            setup_error = None if self._ran or self._killed else self._setup_text()
            status = self._status if self._ran else None
            killed = setup_error is None and (status is None or self.limit is not None)
            number = 9 if killed else status - 128 if status is not None and 128 < status < 193 else None
            outcome = Outcome(
                exit_code=status if setup_error is None and number is None else None,
                signal=number,
                limit=limit,
                setup_error=setup_error,
                memory_enforcer=self.host.memory_enforcer if self.group else "none",
                seconds=ended - self._went - self.pauses.seconds(ended) if self._went else 0.0,
                peak_memory_mb=self.group.peak() if self.group else None,
                connections=self.gate.log.kept if self.gate else (),
                connections_dropped=self.gate.log.dropped if self.gate else 0,
            )
            self._release()
            self._outcome = outcome
            self.host.live.discard(self)

    def _setup_text(self) -> str:
        text = b""
        with contextlib.suppress(OSError):
            text = os.read(self._setup, SETUP_TEXT)
        said = text.decode("utf-8", "replace").strip()
        return self._refusal or said or "it ended before the command was started, and said nothing"

    def _release(self) -> None:
        self._control.close()
        if self.gate:
            self.gate.close()
        for descriptor in (self._setup, self._init, self._command):
            if descriptor is not None:
                os.close(descriptor)
        self._init = self._command = None
        if self.group:
            self.group.close()

    def signal(self, signum: int) -> None:
        """Send a signal to the command (not to its children). Nothing happens if it is gone."""
        self._await(lambda: self._command is not None, 5.0)
        with self._lock, contextlib.suppress(ProcessLookupError):
            if self._command is not None:
                signal.pidfd_send_signal(self._command, signal.Signals(signum))

    def stop_for(self, limit: str) -> None:
        """A bound was passed: name it, and end everything."""
        with self._lock:
            if self._outcome is None and self.limit is None:
                self.limit = limit
                self._end()

    def kill(self) -> None:
        """Kill everything; when this returns, nothing of the sandbox is left. May be called twice."""
        with self._lock:
            if self._outcome is None and not self._poll(0):
                self._killed = True
                self._end()
        self.wait()

    def _end(self) -> None:
        if self._init is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._init, signal.SIGKILL)
        else:
            self.host.launcher.kill(self._launch)
        if self._freezer is not None:
            self._freezer.release()  # bwrap is in the group too, and has to see that pid 1 is gone

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


def _first_process(spec: SandboxSpec, control: int, standard: list[int]) -> list[str]:
    """Command line of pid 1, which counts as a process, but not as the command's."""
    processes = spec.limits.processes + 1 if spec.limits.processes else None
    return runner.argv(control, (standard[0], standard[1], standard[2]), processes, spec.command)


def _control_channel() -> tuple[socket.socket, socket.socket]:
    """Our end, which never blocks and learns the sender of each message, and pid 1's."""
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    ours.setblocking(False)
    return ours, theirs


def _check_descriptors(passed: Mapping[int, int]) -> None:
    """Only sockets and pipes: a directory's descriptor would be a way out."""
    if len(passed) > FIRST - 3 - 4:
        raise CannotIsolate(f"at most {FIRST - 7} descriptors can be passed", where=f"{len(passed)} descriptors")
    for number, descriptor in passed.items():
        try:
            mode = os.fstat(descriptor).st_mode
        except OSError as error:
            raise SandboxFailed(f"descriptor {descriptor} can't be passed ({error.strerror})") from None
        if not (stat.S_ISSOCK(mode) or stat.S_ISFIFO(mode)) or not 3 <= number < FIRST:
            raise CannotIsolate(f"only sockets and pipes may be passed, as 3…{FIRST - 1}", where=f"descriptor {number}")


def _options(host: Host, spec: SandboxSpec, descriptors: arguments.Descriptors) -> bytes:
    """What bwrap reads with `--args`; `descriptors` takes what it reads besides."""
    roots = interpreter.roots(spec.python) if spec.python else ()
    base = rootfs.look(spec.rootfs, host.uid, host.gid, host.state) if spec.rootfs else None
    options = arguments.build(spec, host.system, roots, host.place, descriptors, host.pid1, host.seccomp(spec), base)
    return os.fsencode("\0".join([*options, ""]))


def _setup_pipe() -> tuple[int, int]:
    """Reading end (never blocks) and writing end of what bwrap and pid 1 have as their stderr."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    os.set_blocking(reading, False)
    return reading, writing


def _closed_later(stack: contextlib.ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("sandbox", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _group(host: Host, spec: SandboxSpec) -> Group | None:
    if spec.limits.memory_mb is None:
        return None
    try:
        return host.memory.group(spec.limits.memory_mb, spec.limits.processes)
    except OSError as error:
        raise SandboxFailed(
            f"the memory bound can't be set up ({error.strerror})", where=host.memory_enforcer
        ) from None


def _lower(pid: int, number: int, value: int) -> None:
    """Lower a limit of pid 1, and so of all its children to come, for good."""
    with contextlib.suppress(ProcessLookupError):
        hard = resource.prlimit(pid, number)[1]
        bound = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.prlimit(pid, number, (bound, bound))


def _limits(spec: SandboxSpec) -> dict[str, int]:
    """Limits of single processes, set before bwrap; RLIMIT_NPROC is pid 1's to set."""
    limits = {"CORE": 0}
    if spec.limits.file_size_mb is not None:
        limits["FSIZE"] = spec.limits.file_size_mb * MEGABYTE
    if spec.limits.open_files is not None:
        allow_list = spec.network not in ("none", "host", ())
        limits["NOFILE"] = max(spec.limits.open_files, 16) + (gate.SPARE if allow_list else 0)
    return limits
