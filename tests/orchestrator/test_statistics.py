"""Statistics against brute force: every sign pattern written out, every shift tried."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import statistics

# Multiples of 1/6: what averaging two or three pass/fail repeats gives, with many exact ties
REWARDS = st.integers(-6, 6).map(lambda n: Fraction(n, 6))
TASKS = st.lists(REWARDS, max_size=7)
slow = settings(max_examples=60, deadline=None)  # brute force in exact arithmetic takes its time


def all_sums(differences: list[Fraction]) -> list[Fraction]:
    """The sum under each sign pattern, in exact arithmetic."""
    signs = itertools.product((1, -1), repeat=len(differences))
    return [sum((s * d for s, d in zip(pattern, differences, strict=True)), Fraction(0)) for pattern in signs]


def brute_two_sided(differences: list[Fraction]) -> Fraction:
    observed, sums = abs(sum(differences, Fraction(0))), all_sums(differences)
    return Fraction(sum(abs(total) >= observed for total in sums), len(sums))


def brute_one_sided(differences: list[Fraction]) -> Fraction:
    observed, sums = sum(differences, Fraction(0)), all_sums(differences)
    return Fraction(sum(total >= observed for total in sums), len(sums))


@slow
@given(TASKS)
def test_two_sided_is_the_share_of_sign_patterns(differences: list[Fraction]) -> None:
    given_values = [float(d) for d in differences]
    assert statistics.two_sided(given_values) == pytest.approx(float(brute_two_sided(differences)), abs=1e-12)


@slow
@given(TASKS)
def test_one_sided_is_the_share_of_sign_patterns(differences: list[Fraction]) -> None:
    given_values = [float(d) for d in differences]
    assert statistics.one_sided(given_values) == pytest.approx(float(brute_one_sided(differences)), abs=1e-12)


@slow
@given(TASKS.filter(bool), st.fractions(Fraction(1, 100), Fraction(1, 2)))
def test_equivalence_is_two_one_sided_tests(differences: list[Fraction], margin: Fraction) -> None:
    above = brute_one_sided([d + margin for d in differences])
    below = brute_one_sided([margin - d for d in differences])
    got = statistics.equivalence([float(d) for d in differences], float(margin))
    assert got == pytest.approx(float(max(above, below)), abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.lists(REWARDS, min_size=1, max_size=6), st.sampled_from([0.05, 0.1, 0.3]))
def test_interval_holds_exactly_the_shifts_that_are_not_rejected(differences: list[Fraction], alpha: float) -> None:
    bounds = statistics.interval([float(d) for d in differences], alpha)
    step = Fraction(1, 37)  # no shift meets a bound, which is a mean of sixths over at most six tasks
    for number in range(-40, 41):
        shift = number * step + Fraction(1, 1009)
        kept = brute_two_sided([d - shift for d in differences]) > Fraction(alpha)
        inside = (bounds.low is None or float(shift) >= bounds.low) and (
            bounds.high is None or float(shift) <= bounds.high
        )
        assert inside == kept, (differences, float(shift), bounds)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=6))
def test_holm_is_between_the_raw_value_and_bonferroni(values: list[float]) -> None:
    adjusted = statistics.holm({str(n): v for n, v in enumerate(values)})
    for number, value in enumerate(values):
        assert value <= adjusted[str(number)] <= min(1.0, value * len(values)) + 1e-12
    order = sorted(range(len(values)), key=lambda n: values[n])
    stepped = [adjusted[str(n)] for n in order]
    assert stepped == sorted(stepped)


def test_holm_on_a_worked_example() -> None:
    got = statistics.holm({"a": 0.01, "b": 0.04, "c": 0.03, "d": 0.005})
    assert got == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06, "d": 0.02})


def test_a_lone_candidate_needs_six_wins_and_no_loss() -> None:
    assert statistics.two_sided([1.0] * 6) == 2 / 64
    assert statistics.two_sided([1.0] * 5) == 2 / 32
    assert statistics.wins_needed(1, 0.05) == 6


def test_four_candidates_on_eight_tasks_need_eight_of_eight() -> None:
    assert statistics.wins_needed(4, 0.05) == 8
    family = {"lucky": statistics.two_sided([1.0] * 8), "x": 1.0, "y": 1.0, "z": 1.0}
    assert statistics.holm(family)["lucky"] <= 0.05
    family["lucky"] = statistics.two_sided([1.0] * 7 + [-1.0])
    assert statistics.holm(family)["lucky"] > 0.05


@pytest.mark.parametrize("losses", [0, 1, 2, 3])
@pytest.mark.parametrize("candidates", [1, 3])
def test_wins_needed_is_where_the_test_turns(candidates: int, losses: int) -> None:
    wins = statistics.wins_needed(candidates, 0.05, losses)
    assert candidates * statistics.two_sided([1.0] * wins + [-1.0] * losses) <= 0.05
    assert candidates * statistics.two_sided([1.0] * (wins - 1) + [-1.0] * losses) > 0.05


def test_tasks_for_equivalence_is_where_the_test_turns() -> None:
    for candidates in (1, 2, 4):
        tasks = statistics.tasks_for_equivalence(candidates, 0.05)
        assert candidates * statistics.equivalence([0.0] * tasks, 0.05) <= 0.05
        assert candidates * statistics.equivalence([0.0] * (tasks - 1), 0.05) > 0.05


def test_ties_change_nothing() -> None:
    assert statistics.two_sided([1.0] * 6 + [0.0] * 9) == statistics.two_sided([1.0] * 6)


def test_sums_that_are_equal_on_paper_are_ties() -> None:
    values = [0.1, 0.2, -0.3, 0.3, 0.1, 0.2]  # 0.1 + 0.2 is not 0.3 in binary
    assert statistics.two_sided(values) == float(brute_two_sided([Fraction(str(v)) for v in values]))


def test_beyond_twenty_tasks_patterns_are_drawn_and_repeatable() -> None:
    values = [0.3, -0.1, 0.2, 0.0, 0.5, -0.2, 0.1] * 4
    assert len(values) > statistics.EXACT
    first, again = statistics.two_sided(values), statistics.two_sided(values)
    assert first == again
    assert 1 / (statistics.SAMPLES + 1) <= first <= 1
    exact = brute_through_convolution([round(10 * v) for v in values])
    assert first == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / statistics.SAMPLES))
    bounds = statistics.interval(values, 0.05)
    assert bounds.low is not None and bounds.high is not None
    assert statistics.two_sided([v - bounds.low + 0.01 for v in values]) <= 0.05
    assert statistics.two_sided([v - bounds.low - 0.01 for v in values]) > 0.05


def brute_through_convolution(values: list[int]) -> float:
    """The exact two-sided p value for whole numbers, by counting sums instead of patterns."""
    counts = {0: 1}
    for value in values:
        fresh: dict[int, int] = {}
        for total, count in counts.items():
            for signed in (total + value, total - value):
                fresh[signed] = fresh.get(signed, 0) + count
        counts = fresh
    return sum(c for total, c in counts.items() if abs(total) >= abs(sum(values))) / 2 ** len(values)


def test_nothing_to_compare() -> None:
    assert statistics.two_sided([]) == 1.0
    assert statistics.one_sided([]) == 1.0
    assert statistics.interval([], 0.05) == statistics.Interval(None, None)
    assert statistics.holm({}) == {}


def test_too_few_tasks_bound_nothing() -> None:
    assert statistics.interval([1.0] * 5, 0.05) == statistics.Interval(None, None)
    assert statistics.interval([1.0] * 6, 0.05) == statistics.Interval(1.0, 1.0)


def test_rates_of_rare_events() -> None:
    assert statistics.rate_excess(0, 0, 1.0) == 1.0
    assert statistics.rate_excess(1, 0, 1.0) == 0.5
    assert statistics.rate_excess(5, 0, 1.0) == pytest.approx(1 / 32)
    assert statistics.rate_excess(1, 7, 0.0) == 0.0
    assert statistics.rate_excess(20, 10, 2.0) > 0.5


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32))
def test_false_alarms_stay_below_alpha(seed: int) -> None:
    """A/A: with symmetric noise the two-sided test rejects at most alpha of the time (here over 200 draws)."""
    import random

    chance = random.Random(seed)
    rejected = sum(
        statistics.two_sided([chance.choice((-1.0, 0.0, 0.5, -0.5, 1.0)) for _ in range(10)]) <= 0.05
        for _ in range(200)
    )
    assert rejected <= 25  # P(more) < 1e-4 at rate 0.05
