"""`python -m instance`: put the parts together and run."""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime
from pathlib import Path

from instance.agent import EXIT_FAILED, EXIT_INTERRUPTED, StandardAgent
from instance.base import Parts
from instance.clock import Clock, FixedClock, IdGenerator, SequentialIds, TimeIds
from instance.engine import LlmEngine
from instance.errors import StartError
from instance.iobuffer import StandardIOBuffer
from instance.lines import InheritedLine, Line, SpawnedLine
from instance.log import IterationLogger
from instance.memory import WorkingMemory
from instance.metrics import FixedMetrics, SystemMetrics
from instance.parser import ResponseParser
from instance.renderer import choose_renderer
from instance.scripts import ScriptRunner, script_environment
from instance.settings import SANDBOX_CODE, SANDBOX_DATA, Settings, data_directories, read_settings
from instance.signals import Interrupt
from instance.state import StateStore
from instance.validator import XMLValidator

_SAMPLE_INTERVAL = 2.0  # seconds
_FIRST_MESSAGE = 1.0  # seconds that a deterministic run gives the user's message to arrive
_FIXED_MOMENT = datetime(2025, 1, 1, tzinfo=UTC)


def assemble(settings: Settings, interrupt: Interrupt) -> StandardAgent:
    """A standard agent with everything it needs, its saved state taken up. Raises StartError."""
    schema_path = settings.code / "action_schema.xsd"
    system_prompt = _placed(_read(settings.code / "procedures" / "system_prompt.md"), settings)
    action_schema = _read(schema_path)
    validator = XMLValidator(action_schema)
    data_directories(settings.data)
    state = StateStore(settings.data / "state")
    state.lock()
    clock: Clock = FixedClock(_FIXED_MOMENT) if settings.deterministic else Clock()
    ids: IdGenerator = SequentialIds() if settings.deterministic else TimeIds()
    runner = ScriptRunner(script_environment(os.environ, settings.code), interrupt)
    io = StandardIOBuffer()
    line: Line = (
        InheritedLine(settings.engine_fd)
        if settings.engine_fd is not None
        else SpawnedLine(settings.engine_command, interrupt)
    )
    parts = Parts(
        memory=WorkingMemory(runner),
        metrics=FixedMetrics(_FIXED_MOMENT)
        if settings.deterministic
        else SystemMetrics(_SAMPLE_INTERVAL, settings.data, clock),
        llm=LlmEngine(line, str(schema_path), interrupt),
        parser=ResponseParser(io, runner, ids, clock),
        validator=validator,
        action_schema=action_schema,
        renderer=choose_renderer(system_prompt, action_schema, settings.code / "procedures"),
        logger=IterationLogger(settings.data / "iterations", system_prompt, action_schema),
        io=io,
        state=state,
        runner=runner,
        ids=ids,
        clock=clock,
        interrupt=interrupt,
    )
    agent = StandardAgent(parts)
    agent.restore(run_again=settings.run_again)
    if settings.deterministic:
        io.wait(_FIRST_MESSAGE)
    return agent


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StartError(f"a file of the agent can't be read: {error}") from error


def _placed(text: str, settings: Settings) -> str:
    """The text with the places as they are here: outside of a sandbox they are not those of the contract."""
    if settings.data == SANDBOX_DATA:
        return text
    return text.replace(str(SANDBOX_DATA), str(settings.data)).replace(str(SANDBOX_CODE), str(settings.code))


def main() -> int:
    """Run until stopped; the exit code (docs/contract.md)."""
    interrupt = Interrupt()
    interrupt.install()
    try:
        agent = assemble(read_settings(sys.argv[1:], os.environ), interrupt)
    except (StartError, OSError) as error:
        print(f"sia-agent: {error}", file=sys.stderr)
        return EXIT_FAILED
    try:
        return agent.run()
    except KeyboardInterrupt:
        print("sia-agent: ended at once; the state is the one after the last action", file=sys.stderr)
        return EXIT_INTERRUPTED
    finally:
        agent.llm.close()
        agent.metrics.stop()


if __name__ == "__main__":
    sys.exit(main())
