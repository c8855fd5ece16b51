"""Does a program keep the contract of instances (docs/contract.md)? Found out from outside, in a real sandbox.

Four short runs: a conversation that ends with a request to restart; a second start with the same data; one that finds
its budget used up; one that is told to stop. What a step needs of an agent's own actions is asked only if its schema
has that action. The numbers of the checks are those of the agent's specification.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from orchestrator import neutral
from orchestrator.conformance_peer import Peer, Prompt, Silent
from orchestrator.conformance_scripts import ScriptSteps
from orchestrator.home import Home
from orchestrator.instances import AGENT_DATA, Instance, InstanceSetup, skeletons
from orchestrator.kept_end import KeptEnd
from orchestrator.log_comparison import compare_answers
from orchestrator.own_logs import OwnLogs
from orchestrator.services import HomeServices
from orchestrator.supervisor_socket import SupervisorServer
from orchestrator.untrusted import one_line
from sandbox.spec import Limits, Overlay

if TYPE_CHECKING:
    from orchestrator.agent_build import AgentBuild
    from orchestrator.broker import Line
    from sandbox.host import Host
    from sandbox.process import Outcome

WORKDIR = "/app"
FIRST_SECONDS = 60.0  # from the launch to the first request for an answer
NEXT_SECONDS = 40.0  # from an answer to the next request
BACKGROUND_SECONDS = 20.0  # the same, where a background child holds the script's pipes for longer
END_SECONDS = 10.0  # from a signal to the end of the process (docs/contract.md)
_DETAIL = 500  # characters of an explanation

TITLES = {
    "19": "asks its engine on the socket SIA_ENGINE_FD",
    "15": "sends requests of the engine protocol, and nothing else",
    "15b": "sends one request at a time, and waits for its reply",
    "5a": "reads the user's message from standard input",
    "5b": "writes its answer to standard output as UTF-8 text",
    "5c": "exits with code 0 after <stop/>",
    "6": "runs a script in the task's directory and shows its output",
    "6b": "runs a repeat again in every iteration",
    "8": "keeps PYTHONPATH and SIA_ENGINE_FD away from scripts",
    "7": "does not wait for what a script leaves in the background",
    "7b": "ends a script when its timeout is over",
    "7c": "keeps a bounded part of what a script prints",
    "13": "shows output of any bytes",
    "26": "takes a deleted entry out; goes on after a delete of an unknown id",
    "10": "goes on after an answer that is not an action",
    "12": "goes on after answers of any bytes and size",
    "14": "logs no answer that was not given",
    "34a": "SIGUSR1: finishes the iteration, exits with code 42",
    "35": "takes up its saved state at the next start",
    "34b": "SIGTERM: finishes within 10 s, exits with code 0",
    "19b": "exits with code 0 when its budget is used up",
}
# What decides whether an agent may run. Its own log is no part of the contract: trials compare it with the journal,
# and the verdict says then which answer was made up.
GATE = tuple(number for number in TITLES if number != "14")
HOSTILE = (
    "\x00\x1b[2J\ufffe",
    "<stop/><stop/>",
    '<!DOCTYPE a [<!ENTITY b "c">]><reasoning>&b;</reasoning>',
    "<reasoning>" + "x" * 2_000_000,
)


@dataclass(frozen=True)
class Check:
    """One promise of the contract and whether it was kept. `detail` says what was seen instead, or why not asked."""

    number: str
    title: str
    passed: bool
    detail: str = ""


@dataclass
class _Findings:
    """Results as they come in; what was never reached counts as broken."""

    seen: dict[str, Check] = field(default_factory=dict)
    ended: str = ""

    def note(self, number: str, passed: bool, detail: str = "") -> bool:
        if number not in self.seen or (self.seen[number].passed and not passed):
            shown = "" if passed and not detail.startswith("not asked") else one_line(detail, _DETAIL)
            self.seen[number] = Check(number, TITLES[number], passed, shown)
        return passed

    def all(self) -> list[Check]:
        reason = f"not reached: {self.ended}" if self.ended else "not reached"
        return [self.seen.get(number, Check(number, title, False, reason)) for number, title in TITLES.items()]


def check(host: Host, build: AgentBuild, only: Sequence[str] | None = None) -> list[Check]:
    """Run the checks (all, or those whose numbers are in `only`), in the order of TITLES. Takes a second or three.

    Never raises for what the program does; raises SiaError if no sandbox can be started.
    """
    findings = _Findings()
    directory = host.state / "conformance" / secrets.token_hex(4)
    directory.mkdir(parents=True)
    server = _server(host, build)
    try:
        laboratory = _Laboratory(host, build, directory, findings, server)
        with ThreadPoolExecutor(1, thread_name_prefix="conformance") as pool:
            ends = [pool.submit(laboratory.budget), pool.submit(laboratory.stop)]
            laboratory.conversation()
            for end in ends:
                end.result()
    finally:
        server.close()
        for link in directory.glob("layers-*"):
            neutral.remove(host, link)
        shutil.rmtree(directory, ignore_errors=True)
    return [item for item in findings.all() if only is None or item.number in only]


def _server(host: Host, build: AgentBuild) -> SupervisorServer:
    """What answers at /run/sia/supervisor.sock: the same as everywhere, so that nothing tells of this check."""
    home = Home(host.state, host.state.parent)
    home.run.mkdir(mode=0o711, parents=True, exist_ok=True)
    return SupervisorServer(home.run, HomeServices(home, tuple(sorted(path.name for path in build.export.iterdir()))))


class _Laboratory:
    """The runs of one check."""

    def __init__(
        self, host: Host, build: AgentBuild, directory: Path, findings: _Findings, server: SupervisorServer
    ) -> None:
        self._server = server
        self._host, self._build, self._directory, self._findings = host, build, directory, findings
        self._mark = secrets.token_hex(5)
        self._names = {
            kind: set(re.findall(rb"<(?:\w+:)?%s\s+name=[\"'](\w+)[\"']" % kind.encode(), build.schema))
            for kind in ("element", "attribute")
        }
        self._now = "19"  # the check that is on, in the conversation
        self._lowest = skeletons(host, host.state)

    def conversation(self) -> None:
        """Everything that an ordinary run shows, a restart in the middle of it, and the orderly end."""
        overlays = self._overlays("main")
        with self._launch(overlays, "main") as run:
            run.instance.send(f"message-{self._mark} ü\n".encode())
            reached = self._guarded(run, self._first_run)
            self._own_log(run, overlays[1].upper)
            if not reached:
                return
        shown = any(f"message-{self._mark}" in prompt.text for prompt in run.peer.prompts)
        with self._launch(overlays, "again") as run:
            self._guarded(run, lambda again: self._second_run(again, shown))

    def budget(self) -> None:
        """The first inference is refused: the agent has to end in order."""
        with self._launch(self._overlays("budget"), "budget") as run:
            try:
                run.prompt(FIRST_SECONDS)
                run.peer.error("budget", "all 0 iterations are used")
            except Silent as silent:
                self._findings.note("19b", False, f"it was not asked: {run.why(silent)}")
                return
            self._ends("19b", run, 0)

    def stop(self) -> None:
        """The first answer ends it."""
        if not self._can("stop", "5c"):
            return
        with self._launch(self._overlays("stop"), "stop") as run:
            try:
                run.prompt(FIRST_SECONDS)
                run.peer.answer("<stop/>")
            except Silent as silent:
                self._findings.note("5c", False, f"it was not asked: {run.why(silent)}")
                return
            self._ends("5c", run, 0)

    def _first_run(self, run: _Run) -> None:
        findings, mark = self._findings, self._mark
        self._at("19")
        run.prompt(FIRST_SECONDS)
        findings.note("19", True)
        if self._can("read_stdin", "5a"):
            self._at("5a")
            text = run.ask("<read_stdin/>").text
            findings.note("5a", f"message-{mark}" in text, "the message is not in the prompt after <read_stdin/>")
        if self._can("write_stdout", "5b"):
            self._at("5b")
            run.ask(f"<write_stdout>answer-{mark} ü€</write_stdout>")
            wanted = f"answer-{mark} ü€".encode()
            findings.note("5b", run.printed(wanted), f"standard output holds {bytes(run.out[-80:])!r}")
        self._scripts(run)
        self._at("10")
        run.ask("<single>never closed")
        findings.note("10", True)
        self._at("12")
        for answer in HOSTILE:
            run.ask(answer)
        findings.note("12", True)
        self._at("34a")
        run.instance.request_restart()
        time.sleep(0.05)  # the signal is there before the answer that ends the iteration
        run.peer.answer("<reasoning>the end of this iteration</reasoning>")
        self._ends("34a", run, 42)

    def _scripts(self, run: _Run) -> None:
        """What scripts do, as far as the schema has the actions for it."""
        steps = ScriptSteps(self._findings.note, self._at, WORKDIR, BACKGROUND_SECONDS)
        if self._can("single", "6", "7", "8", "7c", "13"):
            steps.single(run)
            steps.flood(run)
            steps.any_bytes(run)
        if self._can("single", "7b") and self._can("timeout", "7b", kind="attribute"):
            steps.timeout(run)
        if self._can("repeat", "6b"):
            steps.repeat(run)
        if self._can("single", "26") and self._can("delete", "26"):
            steps.delete(run)

    def _own_log(self, run: _Run, data: Path) -> None:
        """What the agent wrote down of its answers, against those that it was given."""
        if run.peer.given:
            told = compare_answers(run.peer.given, OwnLogs(data)).tampering
            self._findings.note("14", told is None, told or "")

    def _second_run(self, run: _Run, shown: bool) -> None:
        self._at("35")
        first = run.prompt(FIRST_SECONDS)
        kept = not shown or f"message-{self._mark}" in first.text
        self._findings.note("35", kept, "what it knew before the restart is not in its first prompt")
        answer = threading.Timer(0.05, run.last_answer)  # after the signal: the answer that it may still finish
        answer.start()
        outcome = run.instance.terminate(END_SECONDS)
        answer.join()
        seen = ending(outcome) if outcome.signal is None else f"still running after {END_SECONDS:g} s"
        self._findings.note("34b", outcome.exit_code == 0, f"{seen} instead of code 0{run.log()}")

    def _can(self, name: str, *numbers: str, kind: str = "element") -> bool:
        """Whether the schema has the action (or attribute); if not, what needs it is not asked."""
        if not self._build.schema or name.encode() in self._names[kind]:
            return True
        for number in numbers:
            missing = f"<{name}>" if kind == "element" else f"attribute {name!r}"
            self._findings.note(number, True, f"not asked: its schema has no {missing}")
        return False

    def _at(self, number: str) -> None:
        self._now = number

    def _ends(self, number: str, run: _Run, code: int) -> None:
        """The process ends in time and with `code`."""
        outcome = run.instance.wait(END_SECONDS)
        if outcome is None:
            self._findings.note(number, False, f"it still runs after {END_SECONDS:g} s")
        else:
            self._findings.note(
                number, outcome.exit_code == code, f"{ending(outcome)} instead of code {code}{run.log()}"
            )

    def _guarded(self, run: _Run, steps: Callable[[_Run], None]) -> bool:
        """Carry out steps; silence or bad requests end them, and say why the rest was not reached."""
        try:
            steps(run)
        except Silent as silent:
            self._findings.ended = run.why(silent)
            self._findings.note(self._now, False, self._findings.ended)
            return False
        return True

    def _overlays(self, name: str) -> tuple[Overlay, ...]:
        """Under names that look like those of any other instance."""
        link = self._directory / f"layers-{name}"
        layers = neutral.place(self._host.state, link)
        neutral.link(link, layers)
        return (
            Overlay(WORKDIR, (self._lowest.app,), *self._host.make_upper(layers, neutral.APP)),
            Overlay(AGENT_DATA, (self._lowest.data,), *self._host.make_upper(layers, neutral.DATA)),
        )

    @contextmanager
    def _launch(self, overlays: tuple[Overlay, ...], name: str) -> Iterator[_Run]:
        """A running instance with its engine end."""
        peer, out, log = Peer(), KeptEnd(), self._directory / f"{name}.log"
        setup = InstanceSetup(self._build, WORKDIR, overlays, {}, Limits(seconds=120.0))
        socket = self._server.listen("conformance")
        try:
            with Instance.start(self._host, setup, cast("Line", peer), socket, out.extend, log) as instance:
                yield _Run(instance, peer, out, log)
        finally:
            if peer.faults:
                self._findings.note("15", False, peer.faults[0])
            elif peer.prompts:
                self._findings.note("15", True)
            if peer.prompts:
                self._findings.note("15b", not peer.early, "a request came before the one before it was answered")
            peer.close()
            self._server.forget(socket)


@dataclass
class _Run:
    """One launch, while it lasts."""

    instance: Instance
    peer: Peer
    out: bytearray
    _log: Path

    def prompt(self, seconds: float) -> Prompt:
        return self.peer.prompt(seconds)

    def ask(self, answer: str) -> Prompt:
        """Give an answer and wait for the request that follows it."""
        self.peer.answer(answer)
        return self.prompt(NEXT_SECONDS)

    def last_answer(self) -> None:
        """An answer that nothing has to follow."""
        with contextlib.suppress(Silent):
            self.peer.answer("<reasoning>the last one</reasoning>")

    def printed(self, wanted: bytes) -> bool:
        """Whether standard output holds `wanted` within two seconds."""
        end = time.monotonic() + 2.0
        while wanted not in self.out and time.monotonic() < end:
            time.sleep(0.01)
        return wanted in self.out

    def why(self, silent: Silent) -> str:
        """Why no request came: how the process ended, and the end of its own log."""
        outcome = self.instance.wait(1.0)
        return (f"it ended with {ending(outcome)}" if outcome else str(silent)) + self.log()

    def log(self) -> str:
        """The last words of its standard error, for an explanation."""
        try:
            text = self._log.read_bytes()[-4000:].decode("utf-8", "replace").strip()
        except OSError:
            return ""
        return f"; its log ends: {one_line(text.splitlines()[-1])}" if text else ""


def ending(outcome: Outcome) -> str:
    """How a process ended, in words."""
    if outcome.setup_error is not None:
        return f"a sandbox that could not be set up ({outcome.setup_error})"
    if outcome.limit is not None:
        return f"the limit {outcome.limit!r} reached"
    return f"signal {outcome.signal}" if outcome.signal is not None else f"exit code {outcome.exit_code}"
