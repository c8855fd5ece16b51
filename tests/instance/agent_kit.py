"""An agent in the test's own process, its engine in a thread: a real line and real files, no start of two programs."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from instance.agent import StandardAgent
from instance.base import Parts
from instance.clock import FixedClock, SequentialIds
from instance.engine import LlmEngine
from instance.entries import Entry, ReasoningEntry, SingleEntry
from instance.iobuffer import WebIOBuffer
from instance.lines import InheritedLine
from instance.log import IterationLogger
from instance.memory import WorkingMemory
from instance.metrics import FixedMetrics
from instance.parser import ResponseParser
from instance.renderer import DocumentRenderer
from instance.scripts import Script, ScriptResult, ScriptRunner, script_environment
from instance.signals import Interrupt
from instance.state import StateStore
from instance.validator import XMLValidator
from orchestrator.protocol import parse_request

ROOT = Path(__file__).resolve().parents[2]
MOMENT = datetime(2025, 1, 1, tzinfo=UTC)
Answer = Callable[[str], str]  # of a context; what begins with U+0015 is an error


class Engine(threading.Thread):
    """A token is a character of system prompt and context. `contexts` were asked about, `answers` were given."""

    def __init__(self, line: socket.socket, limit: int, answer: Answer) -> None:
        super().__init__(daemon=True)
        self.contexts: list[str] = []
        self.answers: list[str] = []
        self._line, self._limit, self._answer = line, limit, answer

    def run(self) -> None:
        request = b""
        while data := self._line.recv(1 << 20):
            request += data
            if request.endswith(b"\x04"):
                self._line.sendall(self._reply(request[:-1]).encode() + b"\x04")
                request = b""

    def _reply(self, document: bytes) -> str:
        request = parse_request(document)
        if request.kind == "token_limit":
            return str(self._limit)
        if request.kind == "token_count":
            return str(len(request.system) + len(request.context or ""))
        answer = self._answer(request.context or "")
        if not answer.startswith("\x15"):
            self.contexts.append(request.context or "")
            self.answers.append(answer)
        return answer


class Inside:
    """`agent` with its `engine`, the state of an earlier one taken up. Its limit is in characters."""

    def __init__(self, directory: Path, limit: int, answer: Answer = lambda _: "<reasoning>on</reasoning>") -> None:
        ours, self._theirs = socket.socketpair()
        self.interrupt, self.ids, clock, io = Interrupt(), SequentialIds(), FixedClock(MOMENT), WebIOBuffer()
        runner = ScriptRunner(script_environment(os.environ, ROOT), self.interrupt, directory)
        schema = (ROOT / "action_schema.xsd").read_text()
        self.agent = StandardAgent(
            Parts(
                memory=WorkingMemory(runner),
                metrics=FixedMetrics(MOMENT),
                llm=LlmEngine(InheritedLine(ours.detach()), "schema", self.interrupt),
                parser=ResponseParser(io, runner, self.ids, clock),
                validator=XMLValidator(schema),
                action_schema=schema,
                renderer=DocumentRenderer("system", "schema"),
                logger=IterationLogger(directory / "iterations", "system", schema),
                io=io,
                state=StateStore(directory / "state"),
                runner=runner,
                ids=self.ids,
                clock=clock,
                interrupt=self.interrupt,
            )
        )
        self.memory, self.runner = self.agent.working_memory, runner
        self.engine = Engine(self._theirs, limit, answer)
        self.engine.start()
        self.agent.restore()

    def add_output(self, text: str) -> SingleEntry:
        """A script that has printed `text`."""
        entry = SingleEntry(Script("x"), self.runner, self.ids.next(), MOMENT, ScriptResult(text, "", 0))
        self.memory.add_entry(entry)
        return entry

    def add_thought(self, text: str) -> Entry:
        """A reasoning."""
        entry = ReasoningEntry(text, self.ids.next(), MOMENT)
        self.memory.add_entry(entry)
        return entry

    def iterate(self, count: int = 1) -> Sequence[str]:
        """Some iterations; all contexts so far."""
        for _ in range(count):
            self.agent.iterate()
        return self.engine.contexts

    def close(self) -> None:
        """End both."""
        self.agent.llm.close()
        self.engine.join(10)
        self._theirs.close()
