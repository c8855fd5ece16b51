"""The supervisor's end of the spawner."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from sandbox import spawner
from sandbox.errors import CannotIsolate, SandboxFailed

SPAWNER = Path(__file__).with_name("spawner.py")
START_TIMEOUT = 30.0  # seconds; a loaded machine takes one


class Launcher:
    """A running spawner. `uid` is what sandboxes run as when we are root, else None."""

    def __init__(
        self, channel: socket.socket, process: subprocess.Popen[bytes], uid: int | None, done: threading.Event
    ) -> None:
        self.channel, self.process, self.uid, self._done = channel, process, uid, done
        self.pid = process.pid
        self._lock = threading.Lock()
        self._count = 0
        self._late = 0  # answers that were given up, and are still to come

    @classmethod
    def start(cls, uid: int | None, neutral: Path, prefix: Sequence[str] = ()) -> Launcher:
        """Start it from a thread that lives until `close` (PDEATHSIG is per thread), and wait until it is ready."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        words = [sys.executable, "-I", "-S", str(SPAWNER), str(theirs.fileno()), str(os.getpid())]
        words += [str(uid), str(neutral)] if uid is not None else []
        started: list[subprocess.Popen[bytes]] = []
        failed: list[OSError] = []
        ready, done = threading.Event(), threading.Event()

        def live() -> None:
            try:
                started.append(
                    subprocess.Popen(
                        [*prefix, *words],
                        env={},
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        pass_fds=[theirs.fileno()],
                        start_new_session=True,  # Ctrl-C is the supervisor's to handle
                    )
                )
            except OSError as error:
                failed.append(error)
            ready.set()
            done.wait()

        threading.Thread(target=live, name="sandbox-parent", daemon=True).start()
        ready.wait()
        theirs.close()
        if failed:
            ours.close()
            done.set()
            raise CannotIsolate(f"the spawner does not start ({failed[0].strerror})", where=sys.executable)
        launcher = cls(ours, started[0], uid, done)
        error, _ = launcher._answer()
        if error:
            launcher.close()
            fix = "as root, SIA needs CAP_SYS_ADMIN for a private mount namespace; or run it as an ordinary user"
            raise CannotIsolate(f"the private mount namespace can't be made ({error})", fix=fix)
        return launcher

    def _answer(self) -> tuple[str | None, list[int]]:
        """What went wrong, if anything, and the descriptors that came along. They come in the order of the requests:
        one that was given up must not be taken for the next one's."""
        while True:
            if not select.select([self.channel], [], [], START_TIMEOUT)[0]:
                self._late += 1
                return f"no answer in {START_TIMEOUT:g} s", []
            data, fds = spawner.receive(self.channel, 1 << 16)
            if not data:
                return "the spawner died", fds
            if not self._late:
                error: str | None = json.loads(data)["error"]
                return error, fds
            self._late -= 1
            for descriptor in fds:
                os.close(descriptor)

    def request(self, message: Mapping[str, object]) -> str | None:
        """Send a request about mounts; returns what went wrong, or None."""
        return self.ask(message)[0]

    def ask(self, message: Mapping[str, object]) -> tuple[str | None, list[int]]:
        """Like `request`, with the descriptors that the answer brings; they are the caller's to close."""
        with self._lock:
            try:
                self.channel.sendall(json.dumps(message).encode())
                return self._answer()
            except OSError as error:
                return f"the spawner is gone: {error.strerror}", []

    def launch(self, message: Mapping[str, object], fds: Sequence[int]) -> int:
        """Ask for one launch; `fds` go to `message["targets"]`. Returns the launch's number for `kill`."""
        with self._lock:
            self._count += 1
            data = json.dumps({**message, "launch": self._count}).encode()
            try:
                self._send(data, list(fds))
            except OSError as error:
                raise SandboxFailed(f"the spawner does not take the launch ({error.strerror})") from None
            return self._count

    def _send(self, data: bytes, fds: list[int]) -> None:
        """One packet. The kernel counts descriptors in flight per user: an instance that holds as many as it may have
        open keeps others of the same user from sending any, except those who may have more open than it."""
        try:
            socket.send_fds(self.channel, [data], fds)
        except OSError as error:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if error.errno != errno.ETOOMANYREFS or soft == hard:
                raise
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
            socket.send_fds(self.channel, [data], fds)

    def sets_limits(self, groups: Sequence[str], *, inside: bool = False) -> bool:
        """Whether the spawner sets limits of single processes itself; else they are set on pid 1 while it waits."""
        return self.uid is not None or bool(groups) or inside

    def kill(self, launch: int) -> None:
        """SIGKILL the bwrap of a launch; with it goes everything inside."""
        with self._lock, contextlib.suppress(OSError):
            self.channel.sendall(json.dumps({"kill": launch}).encode())

    def close(self) -> None:
        """End the spawner, and with it every sandbox that is left."""
        self.channel.close()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait()
        self._done.set()
