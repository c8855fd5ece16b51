"""What every kind of agent shares: its parts, the compiled context, the saved state, telling the model of trouble."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from instance.clock import Clock, IdGenerator
from instance.engine import LlmEngine
from instance.entries import ParseErrorEntry
from instance.errors import EngineError, StateDamaged
from instance.iobuffer import IOBuffer
from instance.log import IterationLogger
from instance.memory import WorkingMemory
from instance.metrics import SystemMetrics
from instance.parser import ResponseParser
from instance.renderer import Prompt, Renderer
from instance.scripts import ScriptRunner
from instance.shedding import TARGETS, WARN_AGAIN, WARN_AT, full_warning, most, shed, shed_notice, show_all, shown
from instance.signals import Interrupt
from instance.state import Counters, Saved, StateStore
from instance.text import visible
from instance.validator import XMLValidator

SENT_MAX = 3_900_000  # characters of a prompt; more might not fit into a request (16 MB, docs/contract.md)
_ROUNDS = 3  # counts until the percent that a prompt shows is its own


class Parts(NamedTuple):
    """What an agent is made of."""

    memory: WorkingMemory
    metrics: SystemMetrics
    llm: LlmEngine
    parser: ResponseParser
    validator: XMLValidator
    action_schema: str
    renderer: Renderer
    logger: IterationLogger
    io: IOBuffer
    state: StateStore
    runner: ScriptRunner
    ids: IdGenerator
    clock: Clock
    interrupt: Interrupt


class BaseAgent(ABC):
    """What all agents share: the parts, the compiled context, the saved state."""

    def __init__(self, parts: Parts) -> None:
        self.working_memory, self.metrics, self.llm = parts.memory, parts.metrics, parts.llm
        self.parser, self.validator, self.renderer = parts.parser, parts.validator, parts.renderer
        self.action_schema = parts.action_schema
        self.logger, self.io, self.interrupt = parts.logger, parts.io, parts.interrupt
        self._state, self._ids, self._clock, self._runner = parts.state, parts.ids, parts.clock, parts.runner
        self._iteration = 0
        self._usage = 0.0  # percent of the token limit that the whole context takes
        self._stale = False  # repeats were not refreshed since the last action
        self._limit: int | None = None  # tokens
        self._most = 100.0  # percent of the token limit that a prompt may take: the rest is kept for the answer
        self._told: set[str] = set()  # troubles that the model has been told about and that go on

    @abstractmethod
    def run(self) -> int:
        """Work until stopped; the exit code."""

    def restore(self, *, run_again: bool = False) -> None:
        """Take up the saved state, or say in an entry that it can't be read.

        `run_again`: scripts that a crash cut off are started once more, instead of being shown as interrupted.
        """
        saved: Saved | None = None
        try:
            saved = self._state.load(self._runner, run_again=run_again)
        except StateDamaged as error:
            self._note(f"starting with empty memory: {error}")
            self._tell(f"The saved state can't be read, so this is a start with empty memory. {error}", "")
        if saved is not None:
            counters = saved.counters
            self._iteration, self._usage, self._stale = counters.iteration, counters.usage, counters.stale
            self._told = set(counters.told)
            self._ids.last = max(self._ids.last, counters.last_id)
            self.io.taken = counters.stdin_taken
            self.io.set_state(saved.incoming, saved.outgoing)
            for entry in saved.entries:
                self.working_memory.add_entry(entry)
        self._iteration = max(self._iteration, self.logger.last())

    def _compile_context(self) -> Prompt:
        """The prompt of this iteration, with its own exact size in it; it leaves room for the answer.

        Raises EngineError (too_long) if it is longer than the engine accepts, whatever is shortened.
        """
        attributes = self.metrics.attributes(self._usage) | {"stdin": str(self.io.buffer_length())}
        prompt = self._sized(attributes)
        memory = self.working_memory
        if self._usage >= WARN_AT and self._tell_once("size", full_warning(memory.get_entries())):
            prompt = self._sized(attributes)
        targets = [target for target in TARGETS if self._usage > self._most]
        if targets:
            self._tell_once("shed", shed_notice(memory.get_entries()))
        for target in targets:
            if self._shed(prompt, target):
                prompt = self._sized(attributes)
            if self._usage <= self._most:
                break
        if self._usage > 100:
            raise EngineError("too_long", "the prompt is too long even without entries")
        return prompt  # with less room than wanted where nothing is left to shorten

    def _sized(self, attributes: dict[str, str]) -> Prompt:
        """The prompt whose `context` is its own size: counted again where writing it down has changed it."""
        entries = shown(self.working_memory.get_entries())
        for _ in range(_ROUNDS):
            attributes["context"] = percent = f"{self._usage:.0f}"
            prompt = self.renderer.render(attributes, entries)
            self._usage = self._measure(prompt)
            if f"{self._usage:.0f}" == percent or self._usage > 100:
                break
        return prompt

    def _accepted(self) -> None:
        """The engine answered: if everything was shown in full and there is room, troubles with the size are over."""
        if self._usage < WARN_AGAIN and not any(entry.shed for entry in self.working_memory.get_entries()):
            self._told -= {"size", "shed"}

    def _shed(self, prompt: Prompt, target: float) -> bool:
        """Shorten what is shown, until a prompt like this one is down to `target` percent. False: nothing is left."""
        size = len(prompt.system) + len(prompt.document)
        return shed(self.working_memory.get_entries(), size * (1 - target / max(self._usage, target)) + 1)

    def _shed_more(self) -> bool:
        """After an engine refused what it had counted as fitting: take away a third. False: nothing is left."""
        entries = self.working_memory.get_entries()
        self._tell_once("shed", shed_notice(entries))
        return shed(entries, sum(len(entry.context_xml()) for entry in shown(entries)) / 3)

    def _show_all(self) -> None:
        """There is more room: show everything in full, as far as it fits."""
        show_all(self.working_memory.get_entries())

    def _measure(self, prompt: Prompt) -> float:
        """Percent of the token limit that a prompt takes."""
        if self._limit is None:
            self._limit = max(1, self.llm.token_limit())
            self._most = most(self._limit)
        size = len(prompt.system) + len(prompt.document)
        if size > SENT_MAX:  # it is not asked about either
            return 100.0 * max(size / SENT_MAX, size / 4 / self._limit)
        return 100.0 * self.llm.token_count(prompt.system, prompt.context) / self._limit

    def _save(self, *, durable: bool = False) -> bool:
        """Save all that the next start needs; a full disk is told to the model, who can make room."""
        told = tuple(sorted(self._told))
        counters = Counters(self._iteration, self._ids.last, self._usage, self._stale, self.io.taken, told)
        return self._guard("state", lambda: self._state.save(counters, self.working_memory, self.io, durable=durable))

    def _guard(self, what: str, write: Callable[[], object]) -> bool:
        try:
            write()
        except OSError as error:
            self._note(f"the {what} could not be written: {error}")
            self._tell_once(what, f"The {what} could not be written: {error.strerror}. Make room on the disk.")
            return False
        self._told.discard(what)
        return True

    def _tell_once(self, trouble: str, error: str) -> bool:
        """Tell of a trouble when it begins; whether that was now."""
        if trouble in self._told:
            return False
        self._told.add(trouble)
        self._tell(error, "")
        return True

    def _tell(self, error: str, content: str) -> None:
        """Tell the model what went wrong, as an entry."""
        self.working_memory.add_entry(ParseErrorEntry.of(content, error, self._ids.next(), self._clock.now()))

    def _note(self, text: str) -> None:
        """One line in the agent's own log, which is standard error. Whoever reads it may be gone, or its disk full."""
        try:
            os.write(2, f"sia-agent: {visible(text)}\n".encode())
        except OSError:
            pass
