"""How a trial ended and what bounded it, from what the sandbox and the broker saw; no word of an instance counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from orchestrator.trial_control import KILLED
from orchestrator.trial_record import OutcomeName
from sandbox.spec import Limits

if TYPE_CHECKING:
    from orchestrator.broker import Line, Usage
    from orchestrator.config import CampaignLimits
    from orchestrator.tasks import Task
    from sandbox.process import Outcome

RESTART = 42  # an instance's exit code that asks for a restart: a crash without a request of the supervisor


@dataclass(frozen=True)
class Ending:
    """How the instance ended: an outcome of the trial, and why."""

    outcome: OutcomeName
    detail: str = ""


def judge_ending(
    outcome: Outcome, line: Line, limits: CampaignLimits, *, gave_up: bool = False, killed: bool = False
) -> Ending:
    """How a trial ended, from what the sandbox and the broker saw; nothing that the instance says is asked.

    `gave_up`: it was killed because it had closed its engine line and ran on. `killed`: by a person.
    """
    if killed:
        return Ending("invalid", KILLED)
    if outcome.setup_error is not None:
        return Ending("invalid", f"the sandbox could not be set up: {outcome.setup_error}")
    if line.outage is not None:
        return Ending("invalid", f"engine outage: {line.outage}")
    if line.ended == "journal":
        return Ending("invalid", "the journal could not be written")
    if gave_up:
        return Ending("crashed", "it closed its engine line and ran on")
    if outcome.limit is not None:
        return Ending("limit", outcome.limit)
    spent = _spent(line.usage, limits) if line.ended in ("budget", "abuse") else ""
    if spent:  # `abuse` too: it went on asking after its budget was spent
        return Ending("limit", spent)
    if outcome.exit_code == 0:
        return Ending("completed")
    if outcome.signal is not None:
        return Ending("crashed", f"ended by signal {outcome.signal}" + _why(line))
    if outcome.exit_code == RESTART:
        return Ending("crashed", f"exit code {RESTART} without a request to restart")
    return Ending("crashed", f"exit code {outcome.exit_code}" + _why(line))


def _spent(usage: Usage, limits: CampaignLimits) -> str:
    """The bound that was reached, "" if none."""
    if limits.iterations <= usage.iterations:
        return "iterations"
    if limits.tokens is not None and usage.tokens >= limits.tokens:
        return "tokens"
    if limits.cost is not None and (usage.cost is None or usage.cost >= limits.cost):
        return "cost"
    return ""


def _why(line: Line) -> str:
    reasons = {"abuse": "too many bad requests", "engine": "the engine failed"}
    return f" ({reasons[line.ended]})" if line.ended in reasons else ""


def trial_limits(limits: CampaignLimits, task: Task) -> Limits:
    """The stricter of the campaign's and the task's bounds, and the sandbox's defaults where neither has one."""
    default = Limits()
    return Limits(
        memory_mb=_least(limits.memory_mb, task.memory_mb) or default.memory_mb,
        processes=limits.processes or default.processes,
        disk_mb=_least(limits.disk_mb, task.storage_mb) or default.disk_mb,
        upper=limits.upper,
        seconds=_least(limits.seconds, task.agent_timeout),
    )


N = TypeVar("N", int, float)


def _least(one: N | None, other: N | None) -> N | None:
    given = [value for value in (one, other) if value is not None]
    return min(given) if given else None
