"""From stored trial records to one verdict per candidate. Pure: no clock, no files, no randomness but a fixed seed.

The rules, in the order they are applied to a candidate:

1. A trial that shows tampering, or a failed conformance check: `disqualified`. Its wins never count.
2. Pairs (task, repeat) in which a trial stayed invalid after its retries are left out and counted. More than 10 % left out,
   or left out on one side only, or nothing left to compare: `inconclusive`.
3. Difference significantly above 0 and no guardrail worse than its tolerance: `better`; significantly below 0: `worse`.
4. Two one-sided tests place the difference within ± margin: `equivalent`. A broken guardrail is said beside it.
5. Else `inconclusive`, with the reason in words.

Holm's family is every candidate of the plan. One that is disqualified on the way stays in it with p = 1: the number of wins
that the plan promised before the start then holds whatever happens. Candidates that failed the conformance check before the
first trial are not part of the plan, and not of the family. The equivalence tests are a family of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Name = Literal["better", "worse", "equivalent", "inconclusive", "disqualified"]
MAX_EXCLUDED = 0.10  # of the pairs


@dataclass(frozen=True)
class Rules:
    """`[verdict]` of the campaign file."""

    alpha: float = 0.05
    margin: float = 0.05
    tolerance: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Observation:
    """What a verdict needs to know of one finished trial. `cost` in US dollars, None = unknown; `seconds` wall clock."""

    arm: str
    task: str
    repeat: int
    outcome: str
    reward: float
    disqualified: str | None = None
    tokens: int = 0
    iterations: int = 0
    seconds: float = 0.0
    parse_errors: int = 0
    cost: float | None = None


@dataclass(frozen=True)
class Guardrail:
    """One guardrail: totals over the compared pairs. `ratio` None = can't be formed (unknown, or from 0)."""

    name: str
    baseline: float | None
    candidate: float | None
    ratio: float | None
    tolerance: float | None
    broken: bool
    note: str = ""


@dataclass(frozen=True)
class Verdict:
    """What a campaign concluded about one candidate, with the numbers behind it. JSON-able by `dataclasses.asdict`."""

    arm: str
    verdict: Name
    reasons: tuple[str, ...] = ()
    difference: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    p_adjusted: float | None = None
    p_equivalent: float | None = None
    wins: int = 0
    losses: int = 0
    ties: int = 0
    tasks: int = 0
    pairs: int = 0
    excluded: int = 0
    candidate_mean: float | None = None
    baseline_mean: float | None = None
    guardrails: tuple[Guardrail, ...] = ()


def judge(
    observations: Sequence[Observation],
    candidates: Sequence[str],
    rules: Rules,
    *,
    disqualified: Mapping[str, str] | None = None,
) -> dict[str, Verdict]:
    """One verdict per candidate. `candidates`: those of the plan; `disqualified`: candidates that failed before it, why."""
    raise NotImplementedError
