"""The standard agent: one iteration is compile, ask, log, parse, act, refresh, save."""

from __future__ import annotations

import signal
import time
from typing import NamedTuple

from instance.base import BaseAgent
from instance.commands import Command
from instance.entries import Entry, ScriptEntry, SingleEntry
from instance.errors import Cancelled, EngineError, EngineLost, Unusable
from instance.renderer import Prompt

EXIT_STOPPED, EXIT_FAILED, EXIT_RESTART, EXIT_ENGINE, EXIT_INTERRUPTED = 0, 1, 42, 75, 130
_ANSWER_KEPT = 4_100_000  # characters of an answer that are kept: a little more than the validator accepts
_ANSWER_MAX = 64_000_000  # characters after which an engine counts as run away
_ENGINE_TRIES = 6  # errors of the engine in a row
_ENGINE_PAUSE = 0.1  # seconds after the first of them, doubled each time
_FLUSH_PATIENCE = 1.0  # seconds at the end for a slow reader of standard output


class Ended(Exception):
    """The loop is over. `code` is the exit code of the process."""

    def __init__(self, code: int, reason: str) -> None:
        self.code, self.reason = code, reason
        super().__init__(reason)


class Answer(NamedTuple):
    """What was asked and what came back."""

    prompt: Prompt
    text: str


class StandardAgent(BaseAgent):
    """Works by itself, until it is stopped."""

    def run(self) -> int:
        """Iterate; the exit code says how it ended (docs/contract.md)."""
        try:
            if self._stale:
                self._refresh()
            while True:
                self._end_if_asked()
                self.iterate()
                self.interrupt.forget_late_restart()
        except Ended as end:
            ended = end
        self._stale = self._stale or ended.code != EXIT_RESTART
        self._note(ended.reason)
        self.io.flush(_FLUSH_PATIENCE)
        saved = self._save(durable=True)
        return ended.code if saved else ended.code or EXIT_FAILED

    def iterate(self) -> None:
        """One iteration."""
        self._take_input()
        answer = self._ask()
        self._log(answer)
        self._act(answer.text, self._parse(answer.text))
        self._refresh()
        self._save()

    def _take_input(self) -> None:
        """What the user sent is saved before anything else happens: it is in the pipe or in the state."""
        self.io.flush()
        if self.io.take():
            self._save()

    def _ask(self) -> Answer:
        """Compile and infer; errors of the engine are retried, shortened away, or end the loop."""
        failures = 0
        while True:
            try:
                prompt = self._compile_context()
                answer = Answer(prompt, self._infer(prompt))
                self._accepted()
                return answer
            except EngineError as error:
                failures += 1
                self._answer_error(error, failures)
            except EngineLost as error:
                self._reconnect(error)
            except Cancelled:
                self._end_if_asked()

    def _answer_error(self, error: EngineError, failures: int) -> None:
        """Prepare the next try after a typed error, or end the loop."""
        if error.code == "budget":
            raise Ended(EXIT_STOPPED, f"stopped: {error}") from error
        if failures >= _ENGINE_TRIES or (error.code == "too_long" and not self._shed_more()):
            raise Ended(EXIT_ENGINE, f"given up: the engine answers {error}") from error
        if error.code != "too_long":
            self._note(f"the engine answers {error}; asking again")
            self._pause(_ENGINE_PAUSE * 2 ** (failures - 1))

    def _infer(self, prompt: Prompt) -> str:
        pieces, size = [], 0
        for piece in self.llm.infer(prompt.system, prompt.context):
            if size < _ANSWER_KEPT:
                pieces.append(piece[: _ANSWER_KEPT - size])
            size += len(piece)
            if size > _ANSWER_MAX:
                self.llm.restart()
                break
        return "".join(pieces)

    def _log(self, answer: Answer) -> None:
        """Before parsing: whatever the answer does to the agent, what was answered is on disk."""
        self._iteration += 1
        self._guard("iteration log", lambda: self._write_log(answer))

    def _write_log(self, answer: Answer) -> None:
        """What was sent and answered, and all of what was sent shortened before any log had it."""
        self.logger.log_iteration(self._iteration, answer.prompt.document, answer.text)
        for entry in self.working_memory.get_entries():
            if entry.shed and not entry.logged:
                self.logger.log_entry(self._iteration, entry.id, entry.whole_xml())
            entry.logged = True

    def _parse(self, answer: str) -> Command | Entry | None:
        """The action, or None after telling the model what is wrong with its answer."""
        error = self.validator.validate(answer)
        if error is None:
            try:
                return self.parser.parse(answer)
            except Unusable as unusable:
                error = str(unusable)
        self._tell(error, answer)
        return None

    def _act(self, answer: str, action: Command | Entry | None) -> None:
        """Carry the action out. A script is saved as running before it starts."""
        if isinstance(action, Command):
            result = action.execute(self.working_memory)
            if result.should_stop:
                raise Ended(EXIT_STOPPED, "stopped by the model")
            if result.success:
                self._show_all()
            else:
                self._tell(result.message, answer)
        elif action is not None:
            self.working_memory.add_entry(action)
            if isinstance(action, SingleEntry):
                action.begin()
                self._save()
                action.update()
        self._report(action)

    def _refresh(self) -> None:
        """Run all repeats. Not after a request to stop: the next start does it then."""
        self._stale = self.interrupt.request == "stop"
        if not self._stale:
            self.working_memory.update(before=self._save)

    def _report(self, action: Command | Entry | None) -> None:
        what = type(action).__name__ if action is not None else "not an action"
        code = f", exit code {action.exit_code}" if isinstance(action, ScriptEntry) and action.exit_code else ""
        self._note(f"iteration {self._iteration}: {what}{code}")

    def _reconnect(self, error: EngineLost) -> None:
        self._limit = None
        self._end_if_asked()
        self._note(f"{error}; connecting again")
        try:
            self.llm.restart()
        except Cancelled:
            self._end_if_asked()
        except EngineLost as lost:
            raise Ended(EXIT_ENGINE, f"given up: {lost}") from lost

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self.interrupt.request is None:
            time.sleep(min(left, 0.05))
        self._end_if_asked()

    def _end_if_asked(self) -> None:
        """Raise Ended if a signal has asked for it."""
        if self.interrupt.request == "restart":
            raise Ended(EXIT_RESTART, "restarting")
        if self.interrupt.request == "stop":
            by_person = self.interrupt.signum == signal.SIGINT
            raise Ended(EXIT_INTERRUPTED if by_person else EXIT_STOPPED, "stopped by a signal")
