"""A running sandbox."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sandbox.host import Host
from sandbox.spec import SandboxSpec


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


class Sandbox:
    """One sandbox, from launch until nothing of it is left. Methods may be called from any thread."""

    pid: int  # of pid 1 of the sandbox, as seen from the host

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

        Raises CannotIsolate for a specification that can't be isolated; a failing set-up is in the Outcome."""
        raise NotImplementedError

    def wait(self, timeout: float | None = None) -> Outcome | None:
        """The outcome, as soon as nothing of the sandbox is left; None after `timeout` seconds."""
        raise NotImplementedError

    def signal(self, signum: int) -> None:
        """Send a signal to the command (not to its children). Nothing happens if it is gone."""
        raise NotImplementedError

    def kill(self) -> None:
        """Kill everything; when this returns, nothing of the sandbox is left. May be called twice."""
        raise NotImplementedError

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
