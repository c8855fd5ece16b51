"""What an iteration costs the agent itself: scripts and engine excluded."""

from __future__ import annotations

import itertools
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchmarks.figure import Figure, alternate, command
from instance.agent import StandardAgent
from instance.base import Parts
from instance.clock import Clock, TimeIds
from instance.engine import LlmEngine
from instance.entries import ReasoningEntry
from instance.iobuffer import StandardIOBuffer
from instance.lines import InheritedLine
from instance.log import IterationLogger
from instance.memory import WorkingMemory
from instance.metrics import SystemMetrics
from instance.parser import ResponseParser
from instance.renderer import DocumentRenderer
from instance.scripts import ScriptRunner
from instance.signals import Interrupt
from instance.state import StateStore
from instance.validator import XMLValidator

ROOT = Path(__file__).resolve().parent.parent
ENTRIES, SIZE = 20, 1000  # what the context holds: entries, characters of each
EARLY, LATE, WINDOW, ROUNDS = 10, 1000, 20, 10  # iterations that are compared: medians of windows that begin there
_YARDSTICK = "python -c 'import lxml.etree, psutil'"


class _Engine(threading.Thread):
    """Answers at once: a reasoning, then the delete of that reasoning, so that the context keeps its size.

    `busy` is the processor and waiting time of this side, which is not the agent's.
    """

    def __init__(self, line: socket.socket, memory: WorkingMemory) -> None:
        super().__init__(daemon=True)
        self._line, self._memory, self.busy = line, memory, 0.0
        self._count = memory.get_entries_count()

    def run(self) -> None:
        for number in itertools.count():
            request = b""
            while not request.endswith(b"\x04"):
                data = self._line.recv(1 << 20)
                if not data:
                    return
                request += data
            begin = time.perf_counter()
            self._line.sendall(self._answer(request, number).encode() + b"\x04")
            self.busy += time.perf_counter() - begin

    def _answer(self, request: bytes, number: int) -> str:
        if request.startswith(b"<token_"):
            return "1000000" if request.startswith(b"<token_limit") else str(len(request) // 4)
        if self._memory.get_entries_count() > self._count:
            return f'<delete id="{self._memory.get_entries()[-1].id}"/>'
        return f"<reasoning>{'r' * SIZE}</reasoning>"


def _agent(data: Path, count: int) -> tuple[StandardAgent, socket.socket]:
    ours, theirs = socket.socketpair()
    interrupt, ids, clock, io = Interrupt(), TimeIds(), Clock(), StandardIOBuffer(0, 1)
    runner = ScriptRunner(os.environ, interrupt)
    prompt = (ROOT / "procedures" / "system_prompt.md").read_text()
    schema = (ROOT / "action_schema.xsd").read_text()
    parts = Parts(
        memory=WorkingMemory(runner),
        metrics=SystemMetrics(2.0, data, clock),
        llm=LlmEngine(InheritedLine(ours.detach()), "action_schema.xsd", interrupt),
        parser=ResponseParser(io, runner, ids, clock),
        validator=XMLValidator(schema),
        action_schema=schema,
        renderer=DocumentRenderer(prompt, schema),
        logger=IterationLogger(data / "iterations", prompt, schema),
        io=io,
        state=StateStore(data / "state"),
        runner=runner,
        ids=ids,
        clock=clock,
        interrupt=interrupt,
    )
    for _ in range(count):
        parts.memory.add_entry(ReasoningEntry("x" * SIZE, ids.next(), clock.now()))
    return StandardAgent(parts), theirs


class Bench:
    """An agent with its engine; `step` is one iteration: seconds that were the agent's own, by the clock and of CPU."""

    def __init__(self, data: Path, entries: int = ENTRIES) -> None:
        self._agent, self._theirs = _agent(data, entries)
        self.memory = self._agent.working_memory
        self._engine = _Engine(self._theirs, self._agent.working_memory)
        self._engine.start()

    def step(self) -> tuple[float, float]:
        begin, worked, busy = time.perf_counter(), time.thread_time(), self._engine.busy
        self._agent.iterate()
        return time.perf_counter() - begin - (self._engine.busy - busy), time.thread_time() - worked

    def close(self) -> None:
        self._agent.llm.close()
        self._agent.metrics.stop()
        self._theirs.close()
        self._engine.join()


def _compare() -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
    """Seconds of iterations around EARLY and around LATE, in turn, so that noise hits both alike."""
    with tempfile.TemporaryDirectory(prefix=".benchmark-", dir=ROOT) as directory, open(os.devnull, "w") as nowhere:
        log = os.dup(2)
        os.dup2(nowhere.fileno(), 2)  # the agent's own log: one line per iteration
        old = Bench(Path(directory) / "old")
        late, early = [], []
        try:
            for _ in range(LATE):
                old.step()
            for number in range(ROUNDS):
                young = Bench(Path(directory) / f"young-{number}")
                for _ in range(EARLY):
                    young.step()
                for turn in range(WINDOW):
                    if turn % 2:
                        early.append(young.step())
                    late.append(old.step())
                    if not turn % 2:
                        early.append(young.step())
                young.close()
        finally:
            os.dup2(log, 2)
            os.close(log)
            old.close()
    return early, late


def measure() -> list[Figure]:
    """Cost per iteration against the yardstick, and of a late iteration against an early one."""
    yardstick = alternate(15, start=command([sys.executable, "-c", "import lxml.etree, psutil"]))["start"]
    early, late = _compare()
    cost = statistics.median(clock for clock, _ in late)
    growth = statistics.median(cpu for _, cpu in late) / statistics.median(cpu for _, cpu in early)
    detail = f"{cost * 1000:.2f} ms per iteration, yardstick {yardstick * 1000:.0f} ms"
    return [
        Figure("agent: own cost per iteration, 20 entries of 1 kB", cost / yardstick, 0.10, _YARDSTICK, detail),
        Figure("agent: iteration 1,000 against iteration 10", growth, 1.1, "the same agent at iteration 10, CPU time"),
    ]
