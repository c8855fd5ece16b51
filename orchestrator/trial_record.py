"""What a trial gave, as it is stored: verdicts and reports are functions of these records."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from orchestrator.untrusted import one_line

OutcomeName = Literal["completed", "limit", "crashed", "invalid"]


@dataclass(frozen=True)
class TrialRecord:
    """What a trial gave. JSON-able (`to_json`). Amounts that nobody knows are None, never 0."""

    id: str
    journal: str  # the journal's id; differs from `id` when an earlier try was cut off
    campaign: str
    arm: str
    task: str
    split: str
    repeat: int
    outcome: OutcomeName
    detail: str  # limit's name, how it crashed, or why it is invalid; "" when completed
    reward: float | None  # None only when invalid
    disqualified: str | None  # evidence of tampering, in words
    tokens: int | None  # prompt + completion
    prompt_tokens: int | None
    completion_tokens: int | None
    cached_tokens: int | None
    iterations: int
    cost: float | None
    seconds: float  # of the instance, GO to end
    engine_seconds: float
    verifier_seconds: float
    exit_code: int | None
    parse_errors: int
    repeated_actions: int
    deletes: int
    context_growth: float
    peak_memory_mb: float | None
    memory_enforcer: str
    forgeable: bool | None  # of the task's reward; None: never tried (`sia task check --adversarial`)
    changes: int  # files and directories that the instance added, changed or removed
    tree: str  # tree hash of the agent paths that ran
    task_key: str  # content hash of the task that ran
    journal_head: str
    excluded: str | None = None  # how a person stepped in: it counts for no arm (`outcome` is invalid), no retry
    notes: tuple[str, ...] = ()
    connections: tuple[dict[str, Any], ...] = ()  # sandbox.connections.Connection and `by`: instance | verifier

    def to_json(self) -> dict[str, Any]:
        """Plain values for `json.dumps`."""
        return asdict(self) | {"notes": list(self.notes), "connections": list(self.connections)}


def ended_as(outcome: str, detail: str | None, most: int = 120) -> str:
    """How a trial ended, in words on one line: `completed`, `limit tokens`, `crashed: exit code 9`."""
    between = " " if outcome == "limit" else ": "
    return between.join([one_line(outcome, 20), *([one_line(detail, most)] if detail else [])])
