"""What the given answers were worth. What an agent's own log says of them: `log_comparison`.

Everything here is computed from the journal, with the candidate's schema; nothing from what the candidate reports.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestrator.answer_checker import AnswerChecker, Checked, Checks, checker, close_checkers, schema_fault
from orchestrator.journal import Exchange, Journal
from orchestrator.log_comparison import LogComparison, compare_log, tampering

__all__ = [
    "AnswerChecker",
    "AnswerMetrics",
    "Checked",
    "Checks",
    "LogComparison",
    "answered",
    "checker",
    "close_checkers",
    "compare_log",
    "metrics",
    "schema_fault",
    "tampering",
    "valid",
]


@dataclass(frozen=True)
class AnswerMetrics:
    """Counts over the answered inferences of a journal.

    `repeated_actions`: valid actions that equal an earlier one of the journal (`read_stdin` aside). `context_growth`:
    bytes by which a request grew per inference, first to last. `note`: what could not be judged, and why.
    """

    answers: int
    parse_errors: int
    repeated_actions: int
    deletes: int
    context_growth: float
    note: str | None = None


def answered(exchange: Exchange) -> bool:
    """Whether an exchange is an inference that got a whole answer: an iteration."""
    return exchange.kind == "infer" and exchange.error is None


def valid(exchange: Exchange, checks: Checks) -> bool:
    """Whether an exchange is an iteration with a valid action (what a boot of a new generation is judged by)."""
    return answered(exchange) and checks.check(exchange.asked.prefix + exchange.reply).error is None


def metrics(journal: Journal, schema: bytes) -> AnswerMetrics:
    """Parse errors, repeated actions, deletes and context growth of a journal, judged by the candidate's schema."""
    checks = Checks(schema)
    seen: set[str] = set()
    sizes: list[int] = []
    errors = repeated = deletes = 0
    for exchange in journal.replies():
        if not answered(exchange):
            continue
        sizes.append(exchange.asked.size)
        result = checks.check(exchange.asked.prefix + exchange.reply)
        if result.error is not None:
            errors += 1
            continue
        deletes += result.action == "delete"
        repeated += result.key in seen and result.action != "read_stdin"
        seen.add(result.key)
    growth = (sizes[-1] - sizes[0]) / (len(sizes) - 1) if len(sizes) > 1 else 0.0
    note = f"answers were only checked for well-formedness: {checks.fault}" if checks.fault else None
    return AnswerMetrics(len(sizes), errors, repeated, deletes, growth, note)
