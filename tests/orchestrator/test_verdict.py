"""Verdicts as a function of records: the rules in the order they are applied."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import pytest

from orchestrator.verdict import Observation, Rules, Verdict, judge

RULES = Rules(tolerance={"tokens": 1.2, "seconds": 1.5, "parse_errors": 1.0})


def trials(arm: str, rewards: Sequence[Any], **more: Any) -> list[Observation]:
    """One trial per task; None = invalid; a list = its repeats. `more` applies to each."""
    made = []
    for task, entry in enumerate(rewards):
        for repeat, reward in enumerate(entry if isinstance(entry, list) else [entry], 1):
            outcome = "completed" if reward is not None else "invalid"
            values: dict[str, Any] = {"tokens": 100, "iterations": 5, "seconds": 1.0, **more}
            made.append(Observation(arm, f"task{task:02}", repeat, outcome, reward, **values))
    return made


def lone(baseline: Sequence[Any], candidate: Sequence[Any], rules: Rules = RULES, **more: Any) -> Verdict:
    return judge([*trials("baseline", baseline), *trials("c", candidate, **more)], ["c"], rules)["c"]


def test_six_wins_and_no_loss_are_better() -> None:
    verdict = lone([0] * 6, [1] * 6)
    assert verdict.verdict == "better"
    assert (verdict.wins, verdict.losses, verdict.ties, verdict.difference) == (6, 0, 0, 1.0)
    assert verdict.p == verdict.p_adjusted == 2 / 64
    assert (verdict.low, verdict.high) == (1.0, 1.0)


def test_five_wins_are_not_enough_and_the_reason_says_so() -> None:
    verdict = lone([0] * 5, [1] * 5)
    assert verdict.verdict == "inconclusive"
    assert "5 tasks can't show more" in " ".join(verdict.reasons)


def test_six_losses_are_worse_whatever_the_guardrails_say() -> None:
    assert lone([1] * 6, [0] * 6, tokens=1).verdict == "worse"
    assert lone([1] * 6, [0] * 6, tokens=1000).verdict == "worse"


def test_the_task_is_the_unit_and_its_repeats_are_averaged() -> None:
    """Two tasks with twenty repeats each prove no more than two tasks."""
    verdict = lone([[0] * 20] * 2, [[1] * 20] * 2)
    assert verdict.tasks == 2 and verdict.pairs == 40
    assert verdict.verdict == "inconclusive"
    mixed = lone([[0, 1]] * 6, [[1, 1]] * 6)
    assert mixed.difference == 0.5 and mixed.verdict == "better"


def test_equal_results_are_equivalent_only_with_enough_tasks() -> None:
    assert lone([1] * 5, [1] * 5).verdict == "equivalent"
    few = lone([1] * 4, [1] * 4)
    assert few.verdict == "inconclusive" and "neither" in few.reasons[0]


def test_a_difference_that_is_not_significant_is_not_equivalence() -> None:
    assert lone([1] * 12, [1] * 11 + [0]).verdict == "inconclusive"


def test_within_the_margin_is_equivalent_and_beyond_it_is_not() -> None:
    base = [0.5] * 8
    assert lone(base, [0.52, 0.48] * 4).verdict == "equivalent"
    assert lone(base, [0.7, 0.3] * 4).verdict == "inconclusive"


@pytest.mark.parametrize("amount", ["tokens", "seconds"])
def test_a_better_reward_with_a_broken_guardrail_is_not_better(amount: str) -> None:
    verdict = lone([0] * 8, [1] * 8, **{amount: 200})
    assert verdict.verdict == "inconclusive"
    assert f"{amount} " in " ".join(verdict.reasons) and "guardrail is broken" in verdict.reasons[0]


def test_a_guardrail_without_tolerance_is_only_shown() -> None:
    verdict = lone([0] * 8, [1] * 8, iterations=500)
    assert verdict.verdict == "better"
    shown = {g.name: g for g in verdict.guardrails}
    assert shown["iterations"].ratio == 100 and not shown["iterations"].broken


def test_exactly_the_tolerance_is_kept() -> None:
    assert lone([0] * 8, [1] * 8, tokens=120).verdict == "better"
    assert lone([0] * 8, [1] * 8, tokens=121).verdict == "inconclusive"


def with_errors(arm: str, reward: float, errors: Sequence[int]) -> list[Observation]:
    rows = trials(arm, [reward] * len(errors))
    return [dataclasses.replace(row, parse_errors=n) for row, n in zip(rows, errors, strict=True)]


@pytest.mark.parametrize(
    ("before", "after", "broken"),
    [(0, 0, False), (0, 1, False), (0, 4, False), (0, 5, True), (10, 12, False), (10, 40, True), (40, 10, False)],
)
def test_parse_errors_count_beyond_chance_also_from_a_baseline_of_none(before: int, after: int, broken: bool) -> None:
    rows = with_errors("baseline", 0, [before, *[0] * 7]) + with_errors("c", 1, [after, *[0] * 7])
    verdict = judge(rows, ["c"], RULES)["c"]
    guardrail = next(g for g in verdict.guardrails if g.name == "parse_errors")
    assert guardrail.broken == broken, guardrail
    assert verdict.verdict == ("inconclusive" if broken else "better")


def test_tolerance_zero_allows_no_parse_error() -> None:
    rows = with_errors("baseline", 0, [3] * 8) + with_errors("c", 1, [1, *[0] * 7])
    assert judge(rows, ["c"], Rules(tolerance={"parse_errors": 0.0}))["c"].verdict == "inconclusive"


def test_from_nothing_to_something_is_worse_for_amounts() -> None:
    rows = trials("baseline", [0] * 8, tokens=0) + trials("c", [1] * 8, tokens=1)
    verdict = judge(rows, ["c"], RULES)["c"]
    assert verdict.verdict == "inconclusive" and "where the baseline has none" in " ".join(verdict.reasons)


def test_an_unknown_cost_is_never_zero() -> None:
    """With a tolerance it can't be checked, so it is not kept; without one it is shown as unknown."""
    strict = Rules(tolerance={"cost": 1.1})
    rows = trials("baseline", [0] * 8, cost=0.1) + trials("c", [1] * 8, cost=0.1)
    assert judge(rows, ["c"], strict)["c"].verdict == "better"
    rows[-1] = dataclasses.replace(rows[-1], cost=None)
    verdict = judge(rows, ["c"], strict)["c"]
    assert verdict.verdict == "inconclusive" and "cost unknown" in " ".join(verdict.reasons)
    relaxed = judge(rows, ["c"], RULES)["c"]
    assert relaxed.verdict == "better"
    cost = next(g for g in relaxed.guardrails if g.name == "cost")
    assert (cost.candidate, cost.ratio, cost.broken) == (None, None, False)


def test_more_than_a_tenth_excluded_is_inconclusive() -> None:
    base: list[Any] = [[0, 0]] * 10
    verdict = lone([[None, 0], [0, 0], [None, 0], *base[3:]], [[1, 1], [None, 1], *[[1, 1]] * 8])
    assert verdict.excluded == 3 and verdict.pairs == 20
    assert verdict.verdict == "inconclusive" and "more than 10 %" in verdict.reasons[0]


def test_a_tenth_on_both_sides_is_left_out_and_counted() -> None:
    verdict = lone([[None, 0], *[[0, 0]] * 9], [[1, 1], [None, 1], *[[1, 1]] * 8])
    assert verdict.excluded == 2 and verdict.verdict == "better"
    assert verdict.tasks == 10


@pytest.mark.parametrize("side", ["baseline", "candidate"])
def test_exclusions_on_one_side_only_are_inconclusive(side: str) -> None:
    hurt, whole = [[None, 0], *[[0, 0]] * 9], [[1, 1]] * 10
    if side == "candidate":
        verdict = lone([[0, 0]] * 10, [[None, 1], *whole[1:]])
    else:
        verdict = lone(hurt, whole)
    assert verdict.verdict == "inconclusive" and f"the {side}'s" in verdict.reasons[0]


def test_a_candidate_can_not_erase_the_tasks_it_loses() -> None:
    """Were crashes left out, this one would have six wins and no loss."""
    rows = trials("baseline", [0] * 6 + [1] * 6) + trials("c", [1] * 6 + [0] * 6)
    assert judge(rows, ["c"], RULES)["c"].verdict == "inconclusive"


def test_nothing_left_to_compare() -> None:
    verdict = lone([None] * 3, [None] * 3)
    assert verdict.verdict == "inconclusive" and "no pair" in verdict.reasons[0]


def test_a_disqualifying_trial_disqualifies_and_its_wins_never_count() -> None:
    rows = trials("baseline", [0] * 12) + trials("c", [1] * 12)
    rows[-1] = dataclasses.replace(rows[-1], disqualified="an answer in the log was never given: <stop/>")
    verdict = judge(rows, ["c"], RULES)["c"]
    assert verdict.verdict == "disqualified" and verdict.reasons == ("an answer in the log was never given: <stop/>",)
    assert (verdict.wins, verdict.difference, verdict.p) == (0, None, None)


def test_a_disqualified_baseline_is_nothing_to_compare_with() -> None:
    rows = trials("baseline", [0] * 6, disqualified="it cheated") + trials("c", [1] * 6)
    with pytest.raises(ValueError, match="baseline"):
        judge(rows, ["c"], RULES)


def test_a_cheater_keeps_its_place_in_the_family() -> None:
    """What the plan promised for two candidates holds: 7 wins, although one of them turns out to cheat."""
    base, cheat = trials("baseline", [0] * 7), trials("cheat", [1] * 7, disqualified="evidence")
    enough = judge([*base, *cheat, *trials("c", [1] * 7)], ["cheat", "c"], RULES)
    assert enough["c"].verdict == "better" and enough["c"].p_adjusted == 2 * 2 / 128
    thin = judge([*base, *cheat, *trials("c", [1] * 6 + [0])], ["cheat", "c"], RULES)
    assert thin["c"].verdict == "inconclusive"


def test_one_that_failed_the_contract_is_no_part_of_the_family() -> None:
    rows = trials("baseline", [0] * 6) + trials("c", [1] * 6)
    verdicts = judge(rows, ["c"], RULES, failed_before={"broken": "check 7 (EOT framing)"})
    assert verdicts["c"].verdict == "better"
    assert verdicts["broken"].verdict == "disqualified" and "check 7" in verdicts["broken"].reasons[0]


def test_holm_over_candidates() -> None:
    rows = trials("baseline", [0] * 8)
    for name in ("a", "b", "c", "d"):
        rows += trials(name, [1] * 8)
    verdicts = judge(rows, ["a", "b", "c", "d"], RULES)
    assert {v.verdict for v in verdicts.values()} == {"better"}
    assert all(v.p_adjusted == pytest.approx(4 * 2 / 256) for v in verdicts.values())


def test_trials_that_a_person_chose_to_end_decide_nothing() -> None:
    """One on each side passes both rules on exclusions; and without the tasks that it loses anybody is better."""
    rewards = {"baseline": [0] * 22 + [1, 1], "c": [1] * 8 + [0] * 16}
    assert lone(rewards["baseline"], rewards["c"]).verdict == "inconclusive"
    chosen = {("baseline", "task22"), ("c", "task23")}
    left = [
        dataclasses.replace(one, outcome="invalid", reward=None, by_person=True) if (arm, one.task) in chosen else one
        for arm, given in rewards.items()
        for one in trials(arm, given)
    ]
    verdict = judge(left, ["c"], RULES)["c"]
    assert (verdict.verdict, verdict.excluded) == ("inconclusive", 2)
    assert "a person killed or spoke to 2" in verdict.reasons[0]


def test_a_missing_trial_is_an_excluded_one() -> None:
    rows = trials("baseline", [0] * 6) + trials("c", [1] * 5)
    verdict = judge(rows, ["c"], RULES)["c"]
    assert verdict.excluded == 1 and verdict.verdict == "inconclusive"


def test_verdicts_do_not_depend_on_the_order_of_records_and_become_json() -> None:
    rows = trials("baseline", [0, 1, 0.5, 0, 0, 0.25, 1]) + trials("c", [1, 1, 0.25, 1, 1, 1, 1])
    first = judge(rows, ["c"], RULES)
    assert first == judge(rows[::-1], ["c"], RULES)
    assert json.loads(json.dumps(dataclasses.asdict(first["c"])))["guardrails"][0]["name"] == "tokens"
