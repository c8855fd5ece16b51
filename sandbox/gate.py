"""How a sandbox with an allow-list meets its proxy: a listening socket made inside, served from outside.

A socket belongs for good to the network namespace that it was made in. So a few lines that run inside, before the
command, make a listener on the sandbox's own loopback interface and hand it out over a socket pair; then they become
the command. The proxy outside accepts from it. No forwarder has to run inside, where an instance could end or imitate
it and where it would count as a process; nothing is mounted; and the network namespace stays as empty as any other.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import os
import socket
import threading
from typing import TYPE_CHECKING

from sandbox.allowlist import AllowList
from sandbox.connections import ConnectionLog
from sandbox.errors import CannotIsolate
from sandbox.lookup import Resolve
from sandbox.spec import SandboxSpec

if TYPE_CHECKING:
    from sandbox.proxy import Proxy

PORT = 3128  # on 127.0.0.1 inside
NUMBER = 63  # of the socket pair's end inside, until the command starts
PROGRAM = "/run/sia-gate.py"
JOIN_SECONDS = 5.0
# Descriptors in flight are counted per user: while an instance holds as many as its limit allows, another one with the
# same limit can send none. So this program has a higher one until the command starts.
SPARE = 8192
SOURCE = f"""\
import os, resource, signal, socket, sys
channel = socket.socket(fileno={NUMBER})
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", {PORT}))
listener.listen(64)
socket.send_fds(channel, [b"l"], [listener.fileno()])
channel.close()
listener.close()
most = int(sys.argv[1])
if most:
    most = min(most, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
try:
    os.execvp(sys.argv[2], sys.argv[2:])
except OSError as error:
    print(sys.argv[2] + ": " + os.strerror(error.errno), file=sys.stderr)
    sys.stderr.flush()
    os._exit(126 if isinstance(error, PermissionError) else 127)
"""


class Gate:
    """The network of one sandbox, from before its launch until it is gone."""

    def __init__(self, entries: tuple[str, ...], resolve: Resolve) -> None:
        """Raises CannotIsolate for a malformed entry."""
        self.allowed, self.log = AllowList(entries), ConnectionLog()
        self._ours: socket.socket | None = None
        self._inside: socket.socket | None = None
        self._resolve = resolve
        self._proxy: Proxy | None = None
        self._thread = threading.Thread(target=self._serve, name="sandbox-proxy", daemon=True)

    @classmethod
    def of(cls, spec: SandboxSpec, resolve: Resolve) -> Gate | None:
        """The gate that a specification asks for, if any."""
        return cls(spec.network, resolve) if isinstance(spec.network, tuple) and spec.network else None

    def through(self, spec: SandboxSpec) -> SandboxSpec:
        """The specification whose command begins with the program above, with the proxy in its environment.

        ALL_PROXY names HTTP too: several libraries refuse to start at all when they see a SOCKS address there.
        """
        if spec.python is None:
            raise CannotIsolate(
                "a network allow-list needs a Python inside", where="network", fix="set `python` of the specification"
            )
        address = f"http://127.0.0.1:{PORT}"
        names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
        direct = ",".join(host for host in ("localhost", "127.0.0.1", "::1") if host not in self.allowed.hosts)
        env = {name: address for upper in names for name in (upper, upper.lower())}
        env |= {"NO_PROXY": direct, "no_proxy": direct}
        return dataclasses.replace(
            spec,
            command=(str(spec.python), "-I", "-S", PROGRAM, str(spec.limits.open_files or 0), *spec.command),
            env={**spec.env, **env},
            files={**spec.files, PROGRAM: SOURCE.encode()},
        )

    def connect(self) -> int:
        """Make the socket pair; the descriptor that the sandbox gets as `NUMBER`."""
        from sandbox.proxy import Proxy  # asyncio: only those who use it pay for it

        self._proxy = Proxy(self.allowed, self._resolve, self.log)
        self._ours, self._inside = socket.socketpair()
        return self._inside.fileno()

    def open(self) -> None:
        """The sandbox was launched: serve as soon as its listener arrives."""
        assert self._inside is not None  # `connect` comes first
        self._inside.close()
        self._thread.start()

    def close(self) -> None:
        """End every connection; all are in the log on return. May be called twice, and without `open`."""
        if self._ours is None or self._inside is None or self._proxy is None:
            return
        self._proxy.stop()
        self._inside.close()
        with contextlib.suppress(OSError):
            self._ours.shutdown(socket.SHUT_RDWR)  # wakes the thread if the listener never came
        if self._thread.is_alive():
            self._thread.join(JOIN_SECONDS)
        self._ours.close()

    def _serve(self) -> None:
        listener = self._receive()
        if listener is not None and self._proxy is not None:
            self._proxy.run(listener)

    def _receive(self) -> socket.socket | None:
        """The listener; None if the command never came to its start, or what came is something else."""
        room = socket.CMSG_SPACE(4)
        try:
            assert self._ours is not None
            _, ancillary, _, _ = self._ours.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            return None
        numbers = array.array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
        if not numbers:
            return None
        for extra in numbers[1:]:
            os.close(extra)
        try:
            found = socket.socket(fileno=numbers[0])
        except OSError:  # no socket
            os.close(numbers[0])
            return None
        listens = found.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        if found.family != socket.AF_INET or not listens or found.getsockname() != ("127.0.0.1", PORT):
            found.close()
            return None
        return found
