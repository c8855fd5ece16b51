"""One start of the main instance: its sandbox, its engine line with its own journal, its messages, its progress."""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from orchestrator.backlog import Backlog
from orchestrator.broker import Budget, Line, Usage
from orchestrator.data_layers import Levels
from orchestrator.errors import Failed
from orchestrator.instances import Instance, InstanceSetup
from orchestrator.journal import Exchange, Journal
from orchestrator.messages import MessageLog
from orchestrator.running import Now, action_of
from sandbox.pauses import Pauses

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.agent_build import AgentBuild
    from orchestrator.engines.host import EngineHost
    from orchestrator.exchanges import ExchangeStore
    from orchestrator.generations import Data
    from orchestrator.home import Home
    from orchestrator.supervisor_socket import SupervisorServer
    from sandbox.host import Host
    from sandbox.process import Outcome

OUTSTANDING = 32 * 1024  # bytes of messages that may wait untaken; the rest stays in the log
CHECKING = 0.5  # seconds that checks of answers may take in one turn of the supervisor, but for the last of them
WORKDIR = "/app"


@dataclass(frozen=True)
class Room:
    """What all starts of the main instance share."""

    home: Home
    host: Host
    engine: EngineHost
    store: ExchangeStore
    server: SupervisorServer
    stdout: Callable[[bytes], None]

    @property
    def messages(self) -> MessageLog:
        return MessageLog(self.home.main / "messages.log")

    @property
    def levels(self) -> Levels:
        return Levels(self.home)


def new_nonce() -> str:
    """Names one launch and its journal (`main-<time>-<random>`, so that names sort by time)."""
    return f"main-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(4)}"


class MainInstance:
    """A running main instance. Only the supervisor's thread calls it; the broker's thread only adds to a backlog."""

    def __init__(
        self, room: Room, build: AgentBuild, data: Data, nonce: str, valid: Callable[[Exchange], bool]
    ) -> None:
        """Launch it. `valid` judges an answered inference. Raises SiaError when it can't be launched."""
        self.nonce = nonce
        self.pauses = Pauses()  # the sandbox's own, once there is one
        self.killed: str | None = None  # by whom, in words
        self.last_action: str | None = None
        self.started = self.clock()
        self.valid = 0  # answers that the schema allows
        self.last_valid = self.started
        self.held_up = self.steady = False  # a healthy period, and a long one, were noted
        self._asked_by: int | None = None
        self._valid = valid
        self.messages = room.messages
        self._start = self._fed = data.stdin_offset
        self._taken = [data.stdin_offset] * 3  # at the last three inferences, see `saved_offset`
        self._backlog, self._seen = Backlog(), 0
        self._room = room
        self.stderr = self._stderr()  # the agent's own log of this start
        overlays = room.levels.prepare(room.host, data)
        self.journal = Journal.create(room.store, nonce, {"kind": "main", "commit": build.commit, "tree": build.tree})
        self.line = Line(room.engine, self.journal, Budget(), build.schema, _seed(nonce), self._backlog.put)
        self._socket = room.server.listen(nonce)
        try:
            setup = InstanceSetup(build, WORKDIR, overlays)
            self.line.start()
            self._instance = Instance.start(room.host, setup, self.line, self._socket, room.stdout, self.stderr)
            self.pauses = self._instance.pauses
        except BaseException:
            self.line.close()
            room.server.forget(self._socket)
            self.journal.seal()
            raise

    def _stderr(self) -> Path:
        directory = self._room.home.main / "stderr"
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for old in sorted(directory.iterdir())[:-9]:  # the last ten starts
            old.unlink()
        return directory / f"{self.nonce}.txt"

    # -- looking ------------------------------------------------------------------------------------------------------

    @property
    def usage(self) -> Usage:
        return self.line.usage

    def clock(self) -> float:
        """Monotonic seconds that stand still while it is paused: what `started` and `last_valid` are read from."""
        return time.monotonic() - self.pauses.seconds()

    def now(self, state: str) -> Now:
        """For its row in the table of what runs."""
        values = Now.of(state, self.usage, self._instance.use, self.pauses, self.last_action)
        return replace(values, directory=str(self._room.home.main))

    @property
    def engine_out(self) -> str | None:
        """Evidence that the engine, not the instance, failed."""
        return self.line.outage or ("the engine line ended" if self.line.ended in ("engine", "journal") else None)

    def fed_offset(self) -> int:
        return self._fed

    def taken_offset(self) -> int:
        """Offset of the first message byte that the process has not taken: exact after an orderly exit."""
        return self._fed - self._instance.untaken_stdin()

    def saved_offset(self) -> int:
        """Offset up to which messages are in the saved state for sure, as far as the outside can know.

        An agent saves its state after every action. What it had taken when inference k−2 was answered was saved before
        inference k was asked. After a crash messages are fed again from here: never lost, at worst read twice.
        """
        return self._taken[0]

    # -- doing --------------------------------------------------------------------------------------------------------

    def pump(self) -> bool:
        """Feed messages, and count the inferences that came since the last call, for a moment: what a check costs is
        the instance's choice, and the supervisor has more to do. Returns whether there was one."""
        self._feed()
        new, news = self._backlog.arrived - self._seen, False
        self._seen += new
        for _ in range(min(new, len(self._taken))):
            news, self._taken = True, [*self._taken[1:], self.taken_offset()]
        for exchange in self._backlog.take(CHECKING):
            news = True
            self.last_action = action_of(exchange) or self.last_action
            if self._valid(exchange):
                self.valid += 1
                self.last_valid = self.clock()
        return news

    def _feed(self) -> None:
        room = OUTSTANDING - self._instance.untaken_stdin()
        if room > 0:
            piece = self.messages.read(self._fed, room)
            if piece:
                self._fed += len(piece)
                self._instance.send(piece)

    @property
    def asked(self) -> bool:
        """Whether exit code 42 was asked for."""
        return self._asked_by is not None

    def ask_restart(self, promotion: int) -> bool:
        """SIGUSR1, once for each promotion. False before the first engine request, when it may not be sent yet."""
        if self._asked_by != promotion and self._instance.request_restart():
            self._asked_by = promotion
        return self._asked_by == promotion

    def wait(self, timeout: float) -> Outcome | None:
        return self._instance.wait(timeout)

    def terminate(self) -> Outcome:
        """SIGTERM, ten seconds, SIGKILL."""
        return self._instance.terminate(10.0)

    def pause(self) -> None:
        """From any thread: stop every process of it. Raises SandboxFailed where that can't be."""
        self._instance.pause()

    def resume(self) -> None:
        """From any thread: let it go on."""
        self._instance.resume()

    def kill_for(self, cause: str) -> None:
        """From any thread: end it now, because a person wants it. Raises Failed if it has ended already."""
        if self._instance.wait(0) is not None:
            raise Failed("it has just ended")
        self.killed = cause
        self._instance.kill()

    def kill(self) -> None:
        """From any thread: end it now."""
        self._instance.kill()

    def close(self) -> None:
        """Release everything; the journal is sealed. Count with `pump` before."""
        self._instance.close()
        self.line.close()
        self._room.server.forget(self._socket)
        self.journal.seal()


def _seed(nonce: str) -> Callable[[int], int]:
    def seed(ordinal: int) -> int:
        return int.from_bytes(hashlib.sha256(f"{nonce}/{ordinal}".encode()).digest()[:4], "big") & 0x7FFFFFFF

    return seed
