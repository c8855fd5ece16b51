"""Exact paired statistics over tasks: the sign-flip permutation test, its interval, Holm, equivalence. Pure functions.

Under the null hypothesis each task's difference (candidate − baseline) is as likely to have come out with the other
sign. So the observed sum is compared with the sums under all sign patterns: all 2^n of them up to n = `EXACT`, else
`SAMPLES` patterns drawn with a fixed seed. Nothing is assumed about the rewards' distribution beyond that symmetry.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy
from numpy.typing import NDArray

EXACT = 20  # up to here every sign pattern is looked at
SAMPLES = 99_999  # beyond it, as many are drawn, plus the observed one
SEED = 20_240_607  # of the drawn patterns: the same data always give the same numbers
_CHUNK = 8192  # drawn patterns held in memory at a time
_TIE = 1e-9  # sums that are equal in exact arithmetic may differ in the last bits; relative to the sum of magnitudes

Floats = NDArray[numpy.float64]


@dataclass(frozen=True)
class Interval:
    """The mean differences that the test does not reject. None = unbounded: too few tasks to exclude anything there."""

    low: float | None
    high: float | None


def two_sided(differences: Sequence[float]) -> float:
    """P value of «no difference» against «a difference in either direction». No tasks: 1."""
    values = numpy.asarray(differences, dtype=float)
    bound = abs(float(values.sum())) - _slack(values)
    hits = patterns = 0
    for sums, _ in _halves(values):
        flipped = numpy.abs(values.sum() - 2 * sums)
        hits += int(numpy.count_nonzero(flipped >= bound))
        patterns += len(sums)
    return hits / patterns


def one_sided(differences: Sequence[float]) -> float:
    """P value of «the mean is at most 0» against «it is above 0». No tasks: 1."""
    values = numpy.asarray(differences, dtype=float)
    bound = float(values.sum()) - _slack(values)
    hits = patterns = 0
    for sums, _ in _halves(values):
        flipped = values.sum() - 2 * sums
        hits += int(numpy.count_nonzero(flipped >= bound)) + int(numpy.count_nonzero(-flipped >= bound))
        patterns += 2 * len(sums)
    return hits / patterns


def equivalence(differences: Sequence[float], margin: float) -> float:
    """P value of «the mean differs from 0 by `margin` or more»: the larger one of two one-sided tests."""
    above = one_sided([difference + margin for difference in differences])
    below = one_sided([margin - difference for difference in differences])
    return max(above, below)


def interval(differences: Sequence[float], alpha: float) -> Interval:
    """All shifts whose `two_sided` p value is above `alpha`: the 1 − alpha interval for the mean difference.

    For a shift below the mean, the pattern that flips the tasks of a set S is at least as extreme as the observed one
    exactly when the mean over S, or over its complement, is not above the shift. So the bounds are order statistics of
    these subset means, and no search is needed.
    """
    values = numpy.asarray(differences, dtype=float)
    if not len(values):
        return Interval(None, None)
    lows, highs = [], []
    for sums, sizes in _halves(values):
        trivial = (sizes == 0) | (sizes == len(values))  # the observed pattern: at least as extreme for every shift
        inside = sums / numpy.where(trivial, 1, sizes)
        outside = (values.sum() - sums) / numpy.where(trivial, 1, len(values) - sizes)
        lows.append(numpy.where(trivial, -numpy.inf, numpy.minimum(inside, outside)))
        highs.append(numpy.where(trivial, numpy.inf, numpy.maximum(inside, outside)))
    low, high = numpy.concatenate(lows), numpy.concatenate(highs)
    rank = math.floor(alpha * len(low))  # the first one with which more than alpha of the patterns are as extreme
    mirrored = len(high) - 1 - rank
    return Interval(_finite(numpy.partition(low, rank)[rank]), _finite(numpy.partition(high, mirrored)[mirrored]))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """P values adjusted for looking at several candidates (step-down), in the given order of names."""
    adjusted: dict[str, float] = {}
    highest = 0.0
    ordered = sorted(p_values.items(), key=lambda item: item[1])
    for index, (name, value) in enumerate(ordered):
        highest = max(highest, min(1.0, value * (len(ordered) - index)))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p_values}


def rate_excess(candidate: int, baseline: int, factor: float) -> float:
    """P value of «events come at most `factor` times as often as in the baseline», from counts over as many trials.

    Exact: given the total, the candidate's part is binomial. At factor 1, 1 event against 0 gives 0.5 and 5 against 0
    give 0.03: a few events after none are not evidence yet. At factor 0 any event is evidence.
    """
    from scipy.stats import binom

    return float(binom.sf(candidate - 1, candidate + baseline, factor / (factor + 1))) if candidate else 1.0


def wins_needed(candidates: int, alpha: float, losses: int = 0) -> int:
    """Wins that show a difference in the hardest place of Holm's order, all equally large, with `losses` against them.

    The two-sided p value is then the share of sign patterns with at most `losses` (or at least all but as many) minus
    signs. Ties do not count.
    """
    wins = losses + 1
    while True:
        total = wins + losses
        extreme = 2 * sum(math.comb(total, minus) for minus in range(losses + 1))
        if candidates * extreme / 2**total <= alpha:
            return wins
        wins += 1


def tasks_for_equivalence(candidates: int, alpha: float) -> int:
    """Tasks without any difference that show equivalence in the hardest place of Holm's order."""
    return max(1, math.ceil(math.log2(candidates / alpha)))


def _halves(values: Floats) -> Iterator[tuple[Floats, Floats]]:
    """(sums, sizes) of sets of tasks to flip; of each pair (set, complement) one. The first is the empty set.

    A set and its complement give sums of opposite sign, so the callers count both from one of them.
    """
    if len(values) <= EXACT:
        sums, sizes = numpy.zeros(1), numpy.zeros(1)
        for value in values[1:]:
            sums, sizes = numpy.concatenate([sums, sums + value]), numpy.concatenate([sizes, sizes + 1])
        yield sums, sizes
        return
    yield numpy.zeros(1), numpy.zeros(1)
    generator = numpy.random.Generator(numpy.random.PCG64(SEED))
    for start in range(0, SAMPLES, _CHUNK):
        chosen = generator.integers(0, 2, size=(min(_CHUNK, SAMPLES - start), len(values))).astype(float)
        yield chosen @ values, chosen.sum(axis=1)


def _slack(values: Floats) -> float:
    return _TIE * float(numpy.abs(values).sum())


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None
