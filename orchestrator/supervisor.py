"""The supervisor: keeps the main instance alive and carries promotions and rollbacks through the ledger.

One thread, one loop. Each turn reads where the ledger stands and does the next durable step; what a turn relies on is
in the database, so this process can be killed anywhere and the next one goes on (`recovery.recover`).
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import TYPE_CHECKING

from orchestrator import change, database, faults, states
from orchestrator.boots import Ending, ending_of, last_words, valid_answer
from orchestrator.candidates import build
from orchestrator.config import Main
from orchestrator.engines import named
from orchestrator.engines.host import EngineDown, EngineHost
from orchestrator.errors import ConfigError, Failed, SiaError
from orchestrator.exchanges import ExchangeStore
from orchestrator.generations import Ledger, Promotion, Standing
from orchestrator.main_instance import MainInstance, Room, new_nonce
from orchestrator.main_steps import MainSteps
from orchestrator.policy import AutoPolicy
from orchestrator.recovery import recover
from orchestrator.repository import Repository
from orchestrator.running import RunningRow
from orchestrator.saved_input import after_crash, count_taken
from orchestrator.services import HomeServices
from orchestrator.stdout_log import StdoutLog
from orchestrator.supervisor_lock import supervisor_lock
from orchestrator.supervisor_socket import SupervisorServer

if TYPE_CHECKING:
    from orchestrator.config import Settings
    from orchestrator.home import Home
    from sandbox.process import Outcome

STOP, FAILED, AGAIN, INTERRUPTED = 0, 1, 42, 130  # exit codes of `sia supervise` and `sia run`
TURN = 0.1  # seconds that one turn of the loop may wait
BACKOFF_FIRST, BACKOFF_CAP = 0.5, 60.0  # seconds before a restart, doubled after each crash in a row
PROBE_SECONDS = 2.0  # between looks at an engine that is out
PROBE_PATIENCE = 3.0  # seconds for its answer; it may have to start first
RACES = 100  # lost races with `sia rollback` in a row that are surely none


class Supervisor:
    """`run` returns the exit code. With `once`, main is not restarted after a crash (`sia run`)."""

    def __init__(
        self,
        home: Home,
        settings: Settings,
        *,
        stdout: Callable[[bytes], None],
        report: Callable[[str], None],
        engine: str | None = None,
        once: bool = False,
    ) -> None:
        """`stdout` gets the agent's answers, `report` one line per event; neither may block.

        Raises ConfigError when sia.toml names no engine for the main instance."""
        name = engine or (settings.main.engine if settings.main else None)
        if name is None or not named.exists(name, settings.engines):
            what = f"there is no [engines.{name}]" if name else "[main] engine is not set"
            known = ", ".join(settings.engines)
            fix = f"name one of these: {known}" if known else "define one: [engines.NAME] with its command, and name it"
            raise ConfigError(what, where=str(home.checkout / "sia.toml"), fix=fix)
        self._home, self._settings, self._once = home, settings, once
        self._engine_name = name
        self._steady_seconds = (settings.main or Main(engine=name)).steady_sec
        self._stdout, self._report = stdout, report
        self._stop: int | None = None
        self._stop_since = 0.0
        self._wake = threading.Event()
        self._main: MainInstance | None = None
        self._row: RunningRow | None = None
        self._next_launch = self._next_boot = self._next_probe = 0.0
        self._asking = (0, 0.0)  # id of the promotion that main is asked to exit for, and since when
        self._races = 0
        self._stalled = False

    def run(self) -> int:
        """Until it is told to stop, or main stops by itself. Raises Failed if another supervisor runs."""
        with supervisor_lock(self._home, "run" if self._once else "supervise"), self._signals(), ExitStack() as stack:
            self._open(stack)
            while self._stop is None:
                try:
                    code = self._turn()
                    self._races = 0
                except states.IllegalMove as error:  # a person's command was faster; the next turn sees what is so
                    self._races += 1
                    if self._races > RACES:
                        fix = "start it again; if it happens again, it is a fault of SIA: please report it"
                        raise Failed(f"the ledger allows no {error}", where="supervisor", fix=fix) from None
                    continue
                if code is not None:
                    return code
            return self._stopped()

    def _open(self, stack: ExitStack) -> None:
        from sandbox.host import Host

        home, settings = self._home, self._settings
        home.main.mkdir(mode=0o711, parents=True, exist_ok=True)
        self._db = database.connect(home.database)
        stack.callback(self._db.close)
        self._ledger, self._repository = Ledger(self._db), Repository(home)
        host = stack.enter_context(Host.detect(home.root))
        recover(home, settings, self._db, host)
        named.prepare(self._engine_name, settings.engines, home.checkout, self._report)
        engine = EngineHost(
            self._engine_name,
            named.command_of(self._engine_name, settings.engines) or (),
            home.checkout,
            home.main / "engine.log",
        )
        stack.callback(engine.close)
        engine.start()
        store = ExchangeStore(home.exchanges)
        stack.callback(store.close)
        server = SupervisorServer(home.run, HomeServices(home, settings.agent.paths))
        stack.callback(server.close)
        said = StdoutLog(home.main / "stdout.log")
        stack.callback(said.close)

        def stdout(data: bytes) -> None:
            said.write(data)
            self._stdout(data)

        self._room = Room(home, host, engine, store, server, stdout)
        self._auto = AutoPolicy(home, settings, host)
        stack.callback(self._auto.close)
        stack.callback(self._drop_main)
        self._steps = MainSteps(self._db, home)
        stack.callback(self._steps.close)
        self._last_event = self._db.execute("SELECT coalesce(max(id), 0) FROM event").fetchone()[0]
        standing = self._ledger.standing()
        self._report(f"supervising generation {standing.generation.number}, {standing.state}")

    # -- one turn -----------------------------------------------------------------------------------------------------

    def _turn(self) -> int | None:
        standing = self._ledger.standing()
        self._auto.look(self._db, standing)
        self._steps.look()
        code = self._with_main(self._main, standing) if self._main else self._without_main(standing)
        self._tell()
        return code

    def _with_main(self, main: MainInstance, standing: Standing) -> int | None:
        self._record(main, main.pump())
        outcome = main.wait(TURN)
        if outcome is not None:
            return self._ended(main, outcome)
        if standing.state in (states.STABLE, states.STAGED):
            self._watch(main)
        elif standing.state == states.INTENT and standing.promotion:
            self._ask(main, standing.promotion)
        elif standing.state == states.TRIAL and standing.promotion:
            self._judge(main)
        else:
            self._finish(main, main.terminate(), "stopped: a person ended the promotion")
        return None

    def _without_main(self, standing: Standing) -> int | None:
        promotion = standing.promotion
        if standing.state in (states.STABLE, states.STAGED):
            if time.monotonic() >= self._next_launch:
                return self._start(standing)
            self._wake.wait(TURN)
        elif standing.state == states.INTENT and promotion:
            change.advance(self._ledger, self._repository, promotion)
        elif standing.state == states.TRIAL and promotion:
            if promotion.tries == 0:
                self._failed("the supervisor ended during the last try")
            elif time.monotonic() < self._next_boot:
                self._wake.wait(TURN)
            else:
                self._ledger.count_launch()
                faults.point("launch_counted")
                return self._start(self._ledger.standing())
        elif standing.state == states.ROLLBACK and promotion:
            change.roll_back(self._ledger, self._repository, promotion)
            self._next_launch = 0.0
        elif standing.state == states.HOLD and promotion:
            self._hold(standing, promotion)
        else:  # SAFE: a person decides
            if self._once:
                fix = "decide with `sia rollback [GENERATION]`, or promote a repaired candidate, then start again"
                raise Failed(f"no agent runs: {standing.cause}", where="SAFE", fix=fix)
            self._wake.wait(TURN)
        return None

    # -- starting and ending ------------------------------------------------------------------------------------------

    def _start(self, standing: Standing) -> int | None:
        nonce = new_nonce()
        generation, data = standing.generation, self._ledger.data()
        label = f"generation {generation.number}"
        self._ledger.begin_launch(nonce, count_taken(self._home, data))
        try:
            made = build(self._home, self._settings, generation.commit)
            self._main = MainInstance(self._room, made, data, nonce, valid_answer(made.schema))
        except (SiaError, OSError) as error:
            cause = f"could not be launched: {error.what if isinstance(error, SiaError) else error}"
            self._ledger.end_launch(nonce, None, cause)
            return self._decide(Ending("ours", cause), 0)
        if standing.state == states.TRIAL or standing.probation:
            faults.point("launched" if standing.state == states.TRIAL else "old_launched")
        boot = standing.promotion.launches if standing.state == states.TRIAL and standing.promotion else None
        self._row = RunningRow(self._db, nonce, label, f"boot {boot}" if boot else "running")
        self._steps.begin(self._main)
        self._stalled = False
        self._ledger.event("launch", label, f"{label} started" + (f", boot {boot} of a new generation" if boot else ""))
        return None

    def _ended(self, main: MainInstance, outcome: Outcome) -> int | None:
        main.pump()
        ending = ending_of(main, outcome)
        self._finish(main, outcome, ending.cause)
        if ending.kind == "crash" and (said := last_words(main.stderr)):
            self._ledger.event("last words", main.nonce, said)
        return self._decide(ending, main.valid)

    def _finish(self, main: MainInstance, outcome: Outcome, cause: str) -> None:
        """Everything that is known of this launch becomes durable, and nothing of it is left."""
        orderly = outcome.exit_code in (0, 42)
        offset = main.taken_offset()
        self._ledger.count_valid(main.nonce, main.valid, main.saved_offset())
        main.close()
        if not orderly:
            offset = after_crash(self._home, self._db, main.nonce, self._ledger.data(), main.fed_offset())
        self._ledger.set_offset(offset)
        self._ledger.end_launch(main.nonce, outcome.exit_code, cause)
        self._forget_main()
        if self._ledger.standing().state == states.INTENT:
            faults.point("stopped")

    def _decide(self, ending: Ending, valid: int) -> int | None:
        """What follows from an end of main, by the ledger's state."""
        standing = self._ledger.standing()
        if standing.state == states.TRIAL:
            if ending.kind == "ours":
                self._outage(ending.cause)
            else:
                what = "it stopped" if ending.kind == "stop" else ending.cause
                needed = self._settings.promotion.healthy_iterations
                self._failed(f"{what} after {valid} of {needed} valid iterations")
            return None
        if standing.state not in (states.STABLE, states.STAGED) or ending.kind == "restart":
            return None  # the next turn does the next step of the promotion, or starts main again
        if ending.kind == "stop":
            self._ledger.event("stop", "main", "main stopped by itself")
            return STOP
        return self._crashed(standing, ending)

    def _crashed(self, standing: Standing, ending: Ending) -> int | None:
        count = self._ledger.crash(ending.cause)
        if standing.probation and ending.kind != "ours":
            if standing.state == states.STAGED:
                self._ledger.withdraw("main died")
            self._ledger.died(f"the old generation died too after a rollback: {ending.cause}")
            return None
        if self._once:
            return FAILED
        delay = min(BACKOFF_FIRST * 2 ** min(count - 1, 20), BACKOFF_CAP)
        self._next_launch = time.monotonic() + delay
        self._ledger.event("restart", "main", f"crash {count} in a row; started again in {delay:g} s")
        return None

    # -- while main runs ----------------------------------------------------------------------------------------------

    def _watch(self, main: MainInstance) -> None:
        """A healthy period ends probation, a long one the crash counter; alive without completing anything is told."""
        rules = self._settings.promotion
        if main.valid >= rules.healthy_iterations:
            if not main.held_up:
                main.held_up = True
                self._ledger.held_up()
            if not main.steady and main.clock() - main.started >= self._steady_seconds:
                main.steady = True
                self._ledger.steady()
        silent = main.clock() - main.last_valid
        if (silent > rules.timeout_sec) != self._stalled:
            self._stalled = not self._stalled
            text = f"main is alive, but completed no valid iteration for {silent:.0f} s"
            self._ledger.event("stalled", "main", text if self._stalled else "main completes iterations again")
            if self._row:
                self._row.state = "stalled" if self._stalled else "running"

    def _ask(self, main: MainInstance, promotion: Promotion) -> None:
        """INTENT: main is asked to exit 42. If it does not, a promotion is given up; a person's rollback is forced."""
        now, patience = main.clock(), self._settings.promotion.restart_sec
        if self._asking[0] != promotion.id:
            self._asking = (promotion.id, now)
        if promotion.kind == "rollback" and main.pauses.since is not None:
            main.resume()  # a person wants it away: being paused does not protect it
        if main.ask_restart(promotion.id):
            faults.point("asked")
        if now - self._asking[1] > patience:
            cause = f"main did not exit within {patience:g} s"
            if promotion.kind == "rollback":
                self._finish(main, main.terminate(), cause)
            else:
                self._ledger.give_up(f"{cause}; it goes on unchanged")

    def _judge(self, main: MainInstance) -> None:
        """TRIAL: healthy by the journal of this nonce, or out of time."""
        rules = self._settings.promotion
        if main.valid >= rules.healthy_iterations:
            self._ledger.count_valid(main.nonce, main.valid, main.saved_offset())
            main.journal.sync()  # what the next line rests on
            self._ledger.healthy(main.nonce)
            main.held_up = True
            faults.point("healthy")
            if self._row:
                self._row.state = "running"
        elif main.clock() - main.started > rules.timeout_sec:
            silent = main.line.engine_silent
            ours = main.engine_out or (f"silent for {silent:.0f} s" if silent > rules.timeout_sec / 2 else "")
            cause = (
                f"no progress: {main.valid} of {rules.healthy_iterations} valid iterations in {rules.timeout_sec:g} s"
            )
            cause = f"engine: {ours}" if ours else cause
            self._finish(main, main.terminate(), cause)
            self._outage(cause) if ours else self._failed(cause)

    def _failed(self, cause: str) -> None:
        """A try is lost. The next one comes after a pause: a short disturbance must not use up all of them."""
        promotion = self._ledger.standing().promotion
        left = self._ledger.failed(cause) == states.TRIAL
        faults.point("failed")
        pause = self._settings.promotion.boot_pause_sec
        if left and promotion and pause:
            delay = pause * 2 ** max(0, promotion.launches - 1)
            self._next_boot = time.monotonic() + delay
            self._ledger.event("trial", promotion.candidate, f"{promotion.candidate} is tried again in {delay:g} s")
        else:
            self._next_boot = 0.0

    def _outage(self, cause: str) -> None:
        self._ledger.outage(cause)
        self._next_probe = time.monotonic() + PROBE_SECONDS

    def _hold(self, standing: Standing, promotion: Promotion) -> None:
        self._wake.wait(TURN)
        if time.monotonic() < self._next_probe:
            return
        self._next_probe = time.monotonic() + PROBE_SECONDS
        if (standing.cause or "").startswith("ref:"):
            change.ref_is_back(self._ledger, self._repository, promotion)
            return
        try:
            self._room.engine.probe(PROBE_PATIENCE)
        except (EngineDown, OSError):
            return
        self._ledger.engine_back()

    # -- stopping -----------------------------------------------------------------------------------------------------

    @contextmanager
    def _signals(self) -> Iterator[None]:
        def stop(number: int, frame: FrameType | None) -> None:
            main = self._main
            now = time.monotonic()
            # Asked again by a person who has no more patience. One Ctrl-C may arrive twice: directly and by restart.sh.
            if self._stop is not None and now - self._stop_since > 1.0:
                if main is None:  # something long is done before a launch, an environment is built
                    raise KeyboardInterrupt
                threading.Thread(target=main.kill, daemon=True).start()
            self._stop_since = self._stop_since or now
            interrupted = self._once and number == signal.SIGINT
            self._stop = AGAIN if number == signal.SIGHUP else INTERRUPTED if interrupted else STOP
            self._wake.set()

        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        before = {number: signal.signal(number, stop) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _stopped(self) -> int:
        """Orderly: main saves its state. A boot of a new generation that is cut off by that proves nothing."""
        self._report("stopping")
        main = self._main
        if main is not None:
            trial = self._ledger.standing().state == states.TRIAL
            outcome = main.terminate()
            main.pump()
            self._finish(main, outcome, "stopped by the supervisor")
            if trial and self._ledger.standing().state == states.TRIAL:
                self._ledger.give_back("the supervisor was stopped")
        self._tell()
        assert self._stop is not None
        return self._stop

    def _drop_main(self) -> None:
        """Only after a failure of this program: nothing of main may outlive it."""
        if self._main is not None:
            self._main.close()
            self._main = None

    def _forget_main(self) -> None:
        self._main = None
        self._steps.end()
        if self._row:
            self._row.remove()
            self._row = None

    # -- telling ------------------------------------------------------------------------------------------------------

    def _record(self, main: MainInstance, news: bool) -> None:
        if news:
            self._ledger.count_valid(main.nonce, main.valid, main.saved_offset())
        if self._row:
            self._row.update(main.now(self._row.state))

    def _tell(self) -> None:
        """Events of every process, this one's and `sia promote`'s, in order."""
        rows = self._db.execute("SELECT id, kind, text FROM event WHERE id > ? ORDER BY id", (self._last_event,))
        for row in rows.fetchall():
            self._last_event = row["id"]
            self._report(f"{row['kind']}: {row['text']}")
