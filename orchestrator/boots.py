"""How a start of main ended, and which answers count as valid iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from orchestrator import answers
from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    from pathlib import Path

    from orchestrator.journal import Exchange
    from orchestrator.main_instance import MainInstance
    from sandbox.process import Outcome


@dataclass(frozen=True)
class Ending:
    """`restart`: 42 as asked. `stop`: 0, by itself. `crash`: against the instance. `ours`: proves nothing about it."""

    kind: Literal["restart", "stop", "crash", "ours"]
    cause: str


def ending_of(main: MainInstance, outcome: Outcome) -> Ending:
    """Read an outcome. Code 42 counts as a restart only if the supervisor asked for it."""
    if outcome.setup_error is not None:
        return Ending("ours", f"the sandbox could not be set up: {outcome.setup_error}")
    if main.killed is not None and outcome.signal is not None:
        return Ending("crash", main.killed)
    out = main.engine_out
    if outcome.exit_code == 42:
        return Ending("restart", "restart") if main.asked else Ending("crash", "exit code 42 without a request")
    if out is not None:
        return Ending("ours", f"engine: {out}")
    if outcome.exit_code == 0:
        return Ending("stop", "stopped")
    if outcome.limit is not None:
        return Ending("crash", f"limit: {outcome.limit}")
    if outcome.exit_code is not None:
        return Ending("crash", f"exit code {outcome.exit_code}")
    return Ending("crash", f"signal {outcome.signal}")


def last_words(stderr: Path) -> str:
    """The last line of the agent's own log, made harmless, and where the rest is; "" if it said nothing."""
    try:
        with stderr.open("rb") as file:
            file.seek(max(0, stderr.stat().st_size - 4096))
            lines = file.read().decode("utf-8", "replace").split("\n")
    except OSError:
        return ""
    said = next((line for line in reversed(lines) if line.strip()), "")
    return f"{one_line(said, 200)} (all of it: {stderr})" if said else ""


def valid_answer(schema: bytes) -> Callable[[Exchange], bool]:
    """What counts as a valid iteration: a whole answer that the running generation's own schema allows."""
    checks = answers.Checks(schema)
    return lambda exchange: answers.valid(exchange, checks)
