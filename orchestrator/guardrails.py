"""Guardrails: what a better reward may not be bought with. Pure functions over paired trials.

Amounts are totals over the compared pairs, so both arms ran equally many trials.

- tokens, iterations, seconds, cost: broken when the ratio candidate / baseline is above the tolerance. From a baseline
  of 0 anything above 0 is broken, and 0 against 0 is not.
- parse_errors are rare events, and a ratio of small counts is mostly noise: with the same code, 1 against 0 happens
  every other time. So they are broken only when their rate is above tolerance × the baseline's beyond chance (exact
  binomial test at `alpha`); from a baseline of 0 with tolerance 1.0 that takes five errors. Tolerance 0 allows none.
- An amount that is unknown for any trial (the engine states no cost, say) is unknown as a whole, never 0. With a
  tolerance set for it, it counts as broken: what can't be checked isn't kept. Without one it is only shown as unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchestrator import statistics

NAMES = ("tokens", "iterations", "seconds", "parse_errors", "cost")
COUNTS = frozenset({"parse_errors"})


@dataclass(frozen=True)
class Guardrail:
    """One guardrail. `ratio` None = can't be formed (unknown, or from 0). `tolerance` None = shown, not judged."""

    name: str
    baseline: float | None
    candidate: float | None
    ratio: float | None
    tolerance: float | None
    broken: bool
    note: str = ""


def check(
    baseline: Mapping[str, Sequence[float | None]],
    candidate: Mapping[str, Sequence[float | None]],
    tolerance: Mapping[str, float],
    alpha: float,
) -> tuple[Guardrail, ...]:
    """All guardrails, judged where `tolerance` names them. The mappings hold each pair's amount by guardrail name."""
    return tuple(
        _one(name, _total(baseline[name]), _total(candidate[name]), tolerance.get(name), alpha) for name in NAMES
    )


def _one(
    name: str, baseline: float | None, candidate: float | None, tolerance: float | None, alpha: float
) -> Guardrail:
    if baseline is None or candidate is None:
        note = f"{name} unknown" + (", so its tolerance can't be checked" if tolerance is not None else "")
        return Guardrail(name, baseline, candidate, None, tolerance, tolerance is not None, note)
    ratio = candidate / baseline if baseline else (1.0 if not candidate else None)
    if tolerance is None:
        return Guardrail(name, baseline, candidate, ratio, None, False)
    if name in COUNTS:
        chance = statistics.rate_excess(round(candidate), round(baseline), tolerance)
        broken = chance <= alpha
        above = candidate > tolerance * baseline
        note = (
            f"{candidate:.0f} against {baseline:.0f}: within chance (p = {chance:.2g})" if above and not broken else ""
        )
    else:
        broken = ratio is None or ratio > tolerance
        note = ""
    if broken:
        how = f"{ratio:.2f} × the baseline's" if ratio is not None else f"{candidate:.4g} where the baseline has none"
        note = f"{name} {how} (tolerance {tolerance:g})"
    return Guardrail(name, baseline, candidate, ratio, tolerance, broken, note)


def _total(amounts: Sequence[float | None]) -> float | None:
    known = [amount for amount in amounts if amount is not None]
    return float(sum(known)) if len(known) == len(amounts) else None
