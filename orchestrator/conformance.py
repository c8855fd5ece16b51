"""Does a program keep the contract of instances (docs/contract.md)? Found out from outside, in a real sandbox.

Four short runs: a conversation that ends with a request to restart; a second start with the same data; one whose engine
gives errors, the last that its budget is used up; one that is told to stop. What a step needs of an agent's own actions
is asked only if its schema has that action, and the check says so. The numbers of the checks are those of the agent's
specification: a list of 36 demands. The table in docs/agent.md has one line for each, with what it demands, except
28 to 32, which are about the web interface; several checks of one number have letters (6, 6b).
"""

from __future__ import annotations

import os
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
from orchestrator.conformance_log import form_fault
from orchestrator.conformance_peer import Peer, Silent
from orchestrator.conformance_run import Run, ending
from orchestrator.conformance_schema import Actions
from orchestrator.conformance_scripts import ScriptSteps
from orchestrator.home import Home
from orchestrator.instances import AGENT_DATA, Instance, InstanceSetup, skeletons
from orchestrator.kept_end import KeptEnd
from orchestrator.log_comparison import compare_answers
from orchestrator.own_logs import OwnLogs
from orchestrator.services import HomeServices
from orchestrator.supervisor_socket import SupervisorServer
from orchestrator.untrusted import one_line
from sandbox.errors import UnsafePath
from sandbox.read import open_beneath
from sandbox.spec import Limits, Overlay

if TYPE_CHECKING:
    from orchestrator.agent_build import AgentBuild
    from orchestrator.broker import Line
    from sandbox.host import Host

WORKDIR = "/app"
FIRST_SECONDS = 60.0  # from the launch to the first request for an answer
BACKGROUND_SECONDS = 20.0  # the same, where a background child holds the script's pipes for longer
END_SECONDS = 10.0  # from a signal to the end of the process (docs/contract.md)
_DETAIL = 500  # characters of an explanation
_NOT_ASKED = "not asked: "

TITLES = {
    "19": "asks its engine on the socket SIA_ENGINE_FD",
    "15": "sends requests of the engine protocol, and nothing else",
    "15b": "sends one request at a time, and waits for its reply",
    "5a": "reads the user's message from standard input",
    "5b": "writes its answer to standard output as UTF-8 text",
    "5c": "exits with code 0 after <stop/>",
    "6": "runs a script once, in the task's directory, and shows its output until it is deleted",
    "6b": "runs repeats again in every iteration, side by side",
    "8": "lets scripts leave notes in /root/data/tasks and user that stay, and its code as it is",
    "8b": "keeps PYTHONPATH and SIA_ENGINE_FD away from scripts",
    "7": "does not wait for what a script leaves in the background",
    "7b": "ends a script and its children when its timeout is over, not before",
    "7c": "keeps a bounded part of what a script prints, and says that it is one",
    "7d": "keeps the first and the last part",
    "11": "runs no script with an element in it or a timeout that is no number, and says so",
    "13": "shows output of any bytes",
    "26": "takes a deleted entry out; says that an id is unknown, and goes on",
    "10": "says that an answer is not an action, and goes on",
    "12": "tells of answers of any bytes and size, or uses them, and goes on",
    "14": "logs no answer that was not given",
    "14b": "logs every answer in a file of its own before it acts on it",
    "34a": "SIGUSR1: finishes the iteration, exits with code 42",
    "35": "takes up its saved state at the next start",
    "34b": "SIGTERM: finishes within 10 s, exits with code 0",
    "19b": "exits with code 0 when its budget is used up",
    "19c": "asks again, or ends in order, after other errors of its engine",
}
# What decides whether an agent may run. Its own log is no part of the contract: trials compare it with the journal, and
# the verdict says then which answer was made up. Which parts of an output are worth keeping is for tasks to find out.
GATE = tuple(number for number in TITLES if number not in ("7d", "14", "14b"))
ERRORS = {  # of an engine, in the order in which they are given: code and message
    "engine": "the model could not be loaded",
    "bad_request": "the request can't be served",
    "too_long": "the prompt is longer than the model takes",
    "budget": "all 0 iterations are used",
}
ORDERLY = (0, 75)  # exit codes of an agent that gives up because of its engine: stopped, or for now (EX_TEMPFAIL)
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

    @property
    def asked(self) -> bool:
        """False where the agent's schema lacks what the check needs; it counts as passed then."""
        return not self.detail.startswith(_NOT_ASKED)


def not_asked(checks: Sequence[Check]) -> str:
    """The checks that a passing agent was not asked, by their reason; empty if it was asked everything."""
    numbers: dict[str, list[str]] = {}
    for item in checks:
        if not item.asked:
            numbers.setdefault(item.detail.removeprefix(_NOT_ASKED), []).append(item.number)
    return "; ".join(f"{', '.join(found)}: {reason}" for reason, found in numbers.items())


@dataclass
class _Findings:
    """Results as they come in; what was never reached counts as broken."""

    seen: dict[str, Check] = field(default_factory=dict)
    ended: str = ""

    def note(self, number: str, passed: bool, detail: str = "") -> bool:
        if number not in self.seen or (self.seen[number].passed and not passed):
            shown = "" if passed and not detail.startswith(_NOT_ASKED) else one_line(detail, _DETAIL)
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
            ends = [pool.submit(laboratory.errors), pool.submit(laboratory.stop)]
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
        self._steps = ScriptSteps(findings.note, self._at, WORKDIR, BACKGROUND_SECONDS)
        self._mark = secrets.token_hex(5)
        self._actions = Actions(build.schema)
        self._now = "19"  # the check that is on, in the conversation
        self._lowest = skeletons(host, host.state)

    def conversation(self) -> None:
        """Everything that an ordinary run shows, a restart in the middle of it, and the orderly end."""
        overlays = self._overlays("main")
        data = overlays[1].upper
        with self._launch(overlays, "main") as run:
            run.instance.send(f"message-{self._mark} ü\n".encode())
            reached = self._guarded(run, self._first_run)
            self._own_log(run, data)
            if not reached:
                return
        shown = any(f"message-{self._mark}" in prompt.text for prompt in run.peer.prompts)
        with self._launch(overlays, "again") as run:
            self._guarded(run, lambda again: self._second_run(again, shown))
        if self._actions.has("single"):
            kept = all(_lies(data, f"{place}/{self._steps.mark}") for place in ("tasks", "user"))
            self._findings.note("8", kept, "what a script left in /root/data/tasks and user is gone after a restart")

    def errors(self) -> None:
        """Its engine gives one error after the other. An agent that ends because of one is started once more."""
        overlays, left = self._overlays("errors"), list(ERRORS)
        while left:
            with self._launch(overlays, "errors") as run:
                self._one_error_after_the_other(run, left)
        self._findings.note("19c", True)

    def _one_error_after_the_other(self, run: Run, left: list[str]) -> None:
        """Take errors from `left` and give them, until the agent ends."""
        try:
            run.prompt(FIRST_SECONDS)
            run.ask(f"<reasoning>{'there is something to leave out ' * 30}</reasoning>")
        except Silent as silent:
            left.clear()
            for number in ("19b", "19c"):
                self._findings.note(number, False, f"it was not asked: {run.why(silent)}")
            return
        while left:
            code = left.pop(0)
            try:
                if code == "budget":
                    run.peer.error(code, ERRORS[code])
                else:
                    run.fail(code, ERRORS[code])
            except Silent as silent:
                outcome = run.instance.wait(END_SECONDS)
                orderly = outcome is not None and outcome.exit_code in ORDERLY
                self._findings.note("19c", orderly, f"after the error {code!r}: {run.why(silent)}")
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

    def _first_run(self, run: Run) -> None:
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
        findings.note("10", run.told("<single>never closed"), "nothing in the next prompt says so")
        self._at("12")
        for answer in HOSTILE:
            fault = f"nothing in the next prompt tells of an answer of {len(answer):,} characters, {answer[:20]!r}"
            findings.note("12", run.told(answer), fault)
        self._at("34a")
        run.instance.request_restart()
        time.sleep(0.05)  # the signal is there before the answer that ends the iteration
        run.peer.answer("<reasoning>the end of this iteration</reasoning>")
        self._ends("34a", run, 42)

    def _scripts(self, run: Run) -> None:
        """What scripts do, as far as the schema has the actions for it."""
        steps = self._steps
        if self._can("single", "6", "8", "8b", "7", "7c", "11", "13"):
            steps.single(run)
            steps.flood(run)
            if self._can("single", "7d", attribute="limit"):
                steps.limit(run)
            timeouts = self._can("single", "7b", attribute="timeout")
            if timeouts:
                steps.timeout(run)
            steps.forged(run, timeouts)
            steps.any_bytes(run)
        else:
            self._can("single", "7b", "7d")
        if self._can("single", "6b") and self._can("repeat", "6b"):
            steps.repeat(run)
        if self._can("single", "26") and self._can("delete", "26"):
            steps.delete(run)

    def _own_log(self, run: Run, data: Path) -> None:
        """What the agent wrote down of its answers, against those that it was given."""
        if run.peer.given:
            told = compare_answers(run.peer.given, OwnLogs(data)).tampering
            self._findings.note("14", told is None, told or "")
            fault = form_fault(run.peer.given, OwnLogs(data))
            self._findings.note("14b", fault is None, fault or "")

    def _second_run(self, run: Run, shown: bool) -> None:
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

    def _can(self, action: str, *numbers: str, attribute: str = "") -> bool:
        """Whether the schema has the action (with the attribute); if not, what needs it is not asked."""
        if self._actions.has(action, attribute):
            return True
        missing = f"<{action} {attribute}=>" if attribute else f"<{action}>"
        for number in numbers:
            self._findings.note(number, True, f"{_NOT_ASKED}its schema has no {missing}")
        return False

    def _at(self, number: str) -> None:
        self._now = number

    def _ends(self, number: str, run: Run, code: int) -> None:
        """The process ends in time and with `code`."""
        outcome = run.instance.wait(END_SECONDS)
        if outcome is None:
            self._findings.note(number, False, f"it still runs after {END_SECONDS:g} s")
        else:
            self._findings.note(
                number, outcome.exit_code == code, f"{ending(outcome)} instead of code {code}{run.log()}"
            )

    def _guarded(self, run: Run, steps: Callable[[Run], None]) -> bool:
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
    def _launch(self, overlays: tuple[Overlay, ...], name: str) -> Iterator[Run]:
        """A running instance with its engine end."""
        peer, out, log = Peer(), KeptEnd(), self._directory / f"{name}.log"
        setup = InstanceSetup(self._build, WORKDIR, overlays, {}, Limits(seconds=120.0))
        socket = self._server.listen("conformance")
        try:
            with Instance.start(self._host, setup, cast("Line", peer), socket, out.extend, log) as instance:
                yield Run(instance, peer, out, log)
        finally:
            if peer.faults:
                self._findings.note("15", False, peer.faults[0])
            elif peer.prompts:
                self._findings.note("15", True)
            if peer.prompts:
                self._findings.note("15b", not peer.early, "a request came before the one before it was answered")
            peer.close()
            self._server.forget(socket)


def _lies(upper: Path, name: str) -> bool:
    """Whether there is a file of this name, whatever the instance has put in the way to it."""
    try:
        os.close(open_beneath(upper, name, os.O_PATH))
    except (OSError, UnsafePath):
        return False
    return True
