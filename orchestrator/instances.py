"""An instance: the agent as a process in a sandbox. Main and test instances are made by the same function.

Everything that the process writes is hostile input: it is read by one thread, in bounded pieces, and handed on.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator import neutral
from orchestrator.instance_io import CappedFile, Pump
from sandbox.process import Outcome, Sandbox
from sandbox.spec import Bind, Limits, Overlay, SandboxSpec

if TYPE_CHECKING:
    from orchestrator.agent_build import AgentBuild
    from orchestrator.broker import Line
    from sandbox.host import Host
    from sandbox.pauses import Pauses
    from sandbox.watch import Use

AGENT_CODE = "/root/sia"
AGENT_DATA = "/root/data"
AGENT_ENVIRONMENT = "/opt/agent-env"
AGENT_HOME = "/home/agent"
BUNDLE = "/run/sia/agent.bundle"
SUPERVISOR_SOCKET = "/run/sia/supervisor.sock"
ENGINE_FD = 3  # number of the engine's socket inside; the same everywhere
DATA_DIRECTORIES = ("iterations", "state", "tasks", "user")
STDERR_CAP = 4 * 1024 * 1024  # bytes of the agent's own log that are kept


@dataclass(frozen=True)
class InstanceSetup:
    """What differs between instances. `overlays` are the workdir's and /root/data's (and a task's other places).

    `env` is for conformance tests and a task's own variables; a key of the contract can't be replaced.
    """

    build: AgentBuild
    workdir: str
    overlays: tuple[Overlay, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    network: tuple[str, ...] = ()  # "host:port" that it may reach through a proxy
    rootfs: Path | None = None  # the system that it runs in, instead of the host's


@dataclass(frozen=True)
class Skeletons:
    """Lowest layers that all instances of one state directory share: an empty workdir, and an empty /root/data."""

    app: Path
    data: Path


def skeletons(host: Host, state: Path) -> Skeletons:
    """Make them where they are missing, owned by the sandbox uid; at paths like those of a task's starting files."""
    root = neutral.place(state, state / "skeletons")
    made = Skeletons(*(root / neutral.name(state, name) / neutral.FILES for name in ("app", "data")))
    for path in (made.app, made.data):
        path.mkdir(parents=True, exist_ok=True)
    for name in DATA_DIRECTORIES:
        (made.data / name).mkdir(parents=True, exist_ok=True)
    host.own(root)
    return made


def instance_spec(setup: InstanceSetup, supervisor_socket: Path | None = None) -> SandboxSpec:
    """The sandbox of an instance: a pure function of its setup, the same for main, trial and conformance."""
    build = setup.build
    env = {
        **setup.env,
        "PATH": f"{AGENT_ENVIRONMENT}/bin:/usr/local/bin:/usr/bin:/bin",
        "HOME": AGENT_HOME,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "TMPDIR": "/tmp",
        "PYTHONPATH": AGENT_CODE,
        "PYTHONDONTWRITEBYTECODE": "1",
        "SIA_ENGINE_FD": str(ENGINE_FD),
    }
    binds = [
        Bind(build.export, AGENT_CODE),
        Bind(build.environment, AGENT_ENVIRONMENT),
        Bind(build.bundle, BUNDLE),
    ]
    if supervisor_socket is not None:
        binds.append(Bind(supervisor_socket, SUPERVISOR_SOCKET))
    return SandboxSpec(
        command=build.command,
        workdir=setup.workdir,
        env=env,
        binds=tuple(binds),
        overlays=setup.overlays,
        limits=setup.limits,
        python=build.environment / "bin" / "python",
        network=setup.network or "none",
        rootfs=setup.rootfs,
    )


class Instance:
    """A running instance. Every method may be called from any thread; `close` (or the context manager) ends it."""

    def __init__(self, sandbox: Sandbox, line: Line, pump: Pump) -> None:
        """Use `start`."""
        self._sandbox, self._line, self._pump = sandbox, line, pump

    @classmethod
    def start(
        cls,
        host: Host,
        setup: InstanceSetup,
        line: Line,
        supervisor_socket: Path | None,
        stdout: Callable[[bytes], None],
        stderr: Path,
    ) -> Instance:
        """Launch it. `stdout` is called with each piece of output, from the instance's own thread, and must not block.

        `stderr` receives the agent's own log (a file of ours, at most `STDERR_CAP` bytes; the rest is dropped and
        noted). `line.instance_end` is passed in and closed on our side. Raises what `Sandbox.start` raises.
        """
        inside_in, feed = os.pipe()
        out, inside_out = os.pipe()
        log, inside_log = os.pipe()
        try:
            sandbox = Sandbox.start(
                host,
                instance_spec(setup, supervisor_socket),
                stdin=inside_in,
                stdout=inside_out,
                stderr=inside_log,
                pass_fds={ENGINE_FD: line.instance_end.fileno()},
            )
        except BaseException:
            for descriptor in (feed, out, log):
                os.close(descriptor)
            raise
        finally:
            for descriptor in (inside_in, inside_out, inside_log):
                os.close(descriptor)
            line.instance_end.close()
        return cls(sandbox, line, Pump(feed, out, log, stdout, CappedFile(stderr, STDERR_CAP)))

    def send(self, data: bytes) -> None:
        """Queue bytes for the instance's stdin. Never blocks: a thread feeds the pipe as the instance reads."""
        self._pump.send(data)

    def untaken_stdin(self) -> int:
        """Bytes that were sent but not yet read by the instance (in the pipe, FIONREAD, and in our queue)."""
        return self._pump.untaken()

    def request_restart(self) -> bool:
        """Ask for exit 42 (SIGUSR1). False, and nothing sent, before the first engine request of this process."""
        if not self._line.first_request.is_set():
            return False
        self._sandbox.signal(signal.SIGUSR1)
        return True

    def pause(self) -> None:
        """Stop every process of it where it is, and its wall clock. Raises SandboxFailed where that can't be."""
        self._sandbox.pause()

    def resume(self) -> None:
        """Let it go on."""
        self._sandbox.resume()

    @property
    def pauses(self) -> Pauses:
        """How long it stood still."""
        return self._sandbox.pauses

    @property
    def use(self) -> Use:
        """What the watchdogs saw last."""
        return self._sandbox.use

    def terminate(self, grace: float = 10.0) -> Outcome:
        """SIGTERM, `grace` seconds to save the state, then kill. Killed at once before the first engine request,
        because a process that has not come so far may not have its handler yet, and has nothing to save. A paused
        one goes on for that."""
        self._sandbox.resume()
        if self._line.first_request.is_set():
            self._sandbox.signal(signal.SIGTERM)
            ended = self.wait(grace)
            if ended is not None:
                return ended
        self.kill()
        outcome = self.wait()
        assert outcome is not None  # nothing is left after kill, so wait without a timeout returns
        return outcome

    def wait(self, timeout: float | None = None) -> Outcome | None:
        """The outcome once it has ended and its output is read; None if `timeout` seconds pass first."""
        outcome = self._sandbox.wait(timeout)
        if outcome is not None:
            self._pump.drain()
        return outcome

    def kill(self) -> None:
        """End it and everything it started; all are gone on return."""
        self._sandbox.kill()

    def close(self) -> None:
        """`kill`, then release pipes and the thread. Can be called again."""
        self._sandbox.kill()
        self._pump.drain()
        self._pump.close()

    def __enter__(self) -> Instance:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
