"""What every kind of agent shares: its parts, the compiled context, the saved state, telling the model of trouble."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from instance.clock import Clock, IdGenerator
from instance.engine import LlmEngine
from instance.entries import ParseErrorEntry
from instance.errors import StateDamaged
from instance.iobuffer import IOBuffer
from instance.log import IterationLogger
from instance.memory import WorkingMemory
from instance.metrics import SystemMetrics
from instance.parser import ResponseParser
from instance.renderer import Prompt, Renderer
from instance.scripts import ScriptRunner
from instance.signals import Interrupt
from instance.state import Counters, Saved, StateStore
from instance.text import visible
from instance.validator import XMLValidator

# What is shown of a context that does not fit: characters of each text, and how many of the newest entries.
LEVELS: tuple[tuple[int | None, int | None], ...] = (
    (None, None),
    (8_000, None),
    (2_000, None),
    (500, None),
    (100, None),
    (100, 50),
    (100, 10),
)


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
            self._ids.last = max(self._ids.last, counters.last_id)
            self.io.taken = counters.stdin_taken
            self.io.set_state(saved.incoming, saved.outgoing)
            for entry in saved.entries:
                self.working_memory.add_entry(entry)
        self._iteration = max(self._iteration, self.logger.last())

    def _compile_context(self, level: int = 0) -> Prompt:
        """The prompt of this iteration, with its own size in it; from `level` on, shortened until it fits."""
        entries = self.working_memory.get_entries()
        attributes = self.metrics.attributes(self._usage) | {"stdin": str(self.io.buffer_length())}
        while True:
            limit, newest = LEVELS[level]
            shown = entries[-newest:] if newest else entries
            usage = self._measure(self.renderer.render(attributes, shown, limit))
            if level == 0:
                self._usage = usage
                attributes["context"] = f"{usage:.0f}"
            if usage <= 100 or level == len(LEVELS) - 1:
                return self.renderer.render(attributes, shown, limit)
            self._warn_of_size()
            entries = self.working_memory.get_entries()  # the warning is one of them now
            level += 1

    def _measure(self, prompt: Prompt) -> float:
        if self._limit is None:
            self._limit = max(1, self.llm.token_limit())
        return 100.0 * self.llm.token_count(prompt.system, prompt.context) / self._limit

    def _save(self, *, durable: bool = False) -> bool:
        """Save all that the next start needs; a full disk is told to the model, who can make room."""
        counters = Counters(self._iteration, self._ids.last, self._usage, self._stale, self.io.taken)
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

    def _warn_of_size(self) -> None:
        ids = ", ".join(entry.id for entry in self.working_memory.get_entries()[:50])
        self._tell_once(
            "size",
            "The context is longer than the engine accepts, so texts are shown shortened and old entries may be left "
            f"out. Keep what matters in files, then delete entries. The oldest ids: {ids}",
        )

    def _tell_once(self, trouble: str, error: str) -> None:
        if trouble not in self._told:
            self._told.add(trouble)
            self._tell(error, "")

    def _tell(self, error: str, content: str) -> None:
        """Tell the model what went wrong, as an entry."""
        entry = ParseErrorEntry(visible(content), visible(error), self._ids.next(), self._clock.now())
        self.working_memory.add_entry(entry)

    def _note(self, text: str) -> None:
        """One line in the agent's own log, which is standard error. Whoever reads it may be gone, or its disk full."""
        try:
            os.write(2, f"sia-agent: {visible(text)}\n".encode())
        except OSError:
            pass
