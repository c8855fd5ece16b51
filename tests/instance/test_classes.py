"""The names that the agent's parts have for whoever changes it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from instance.__main__ import assemble
from instance.base import BaseAgent
from instance.clock import Clock
from instance.engine import LlmEngine
from instance.entries import Entry, ReasoningEntry
from instance.iobuffer import IOBuffer
from instance.log import IterationLogger
from instance.memory import WorkingMemory
from instance.metrics import SystemMetrics
from instance.parser import ResponseParser
from instance.settings import Settings
from instance.signals import Interrupt
from instance.validator import XMLValidator

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.spec("18")
@pytest.mark.spec("20")
def test_an_agent_and_its_parts(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="abstract"):
        BaseAgent(None)  # type: ignore[abstract,arg-type]
    ours, theirs = socket.socketpair()
    settings = Settings(ROOT, tmp_path, theirs.detach(), (), deterministic=False, run_again=False)
    agent = assemble(settings, Interrupt())
    try:
        assert isinstance(agent, BaseAgent) and callable(agent.run) and callable(agent._compile_context)
        for name, kind in {
            "working_memory": WorkingMemory,
            "metrics": SystemMetrics,
            "llm": LlmEngine,
            "parser": ResponseParser,
            "validator": XMLValidator,
            "logger": IterationLogger,
            "io": IOBuffer,
            "action_schema": str,
        }.items():
            assert isinstance(getattr(agent, name), kind), name
        assert agent.metrics.generate_context(12.3).get("context") == "12"
    finally:
        agent.metrics.stop()
        agent.llm.close()
        ours.close()


@pytest.mark.spec("24")
@pytest.mark.parametrize("name", ["id", "timestamp"])
def test_what_names_an_entry_never_changes(clock: Clock, name: str) -> None:
    entry: Entry = ReasoningEntry("thought", "1", clock.now())
    with pytest.raises(AttributeError):
        setattr(entry, name, getattr(entry, name))
    assert entry.generate_context().get("id") == "1"
