"""The plan: every cell once, arms side by side, and an honest word about what can be seen."""

from __future__ import annotations

from collections import Counter

import pytest

from orchestrator import statistics
from orchestrator.plan import plan, visible


def test_every_cell_is_planned_once_with_ids_that_sort() -> None:
    trials = plan("c0001", ["a", "b"], ["x", "y", "z"], 4, seed=1)
    assert len(trials) == 3 * 3 * 4
    assert len({(t.arm, t.task, t.repeat) for t in trials}) == len(trials)
    ids = [t.id for t in trials]
    assert ids == sorted(ids) and len(set(ids)) == len(ids) and all(i.isalnum() for i in ids)
    assert [t.position for t in trials] == list(range(len(trials)))


def test_arms_run_side_by_side_and_none_is_always_first() -> None:
    trials = plan("c0001", ["a", "b"], [f"t{n}" for n in range(12)], 3, seed=1)
    groups = [trials[n : n + 3] for n in range(0, len(trials), 3)]
    for group in groups:
        assert len({(t.task, t.repeat) for t in group}) == 1
        assert {t.arm for t in group} == {"baseline", "a", "b"}
    first = Counter(group[0].arm for group in groups)
    assert min(first.values()) >= 6  # 36 groups, 12 expected


def test_the_same_arguments_give_the_same_plan_and_the_seed_another() -> None:
    tasks = [f"t{n}" for n in range(8)]
    assert plan("c1", ["a"], tasks, 2, seed=1) == plan("c1", ["a"], tasks, 2, seed=1)
    assert plan("c1", ["a"], tasks, 2, seed=1) != plan("c1", ["a"], tasks, 2, seed=2)


def test_what_can_be_seen_is_said_before_the_start() -> None:
    seen = visible(candidates=3, tasks=12, repeats=3, alpha=0.05, margin=0.05)
    first, second = seen.sentences()
    assert "With 12 tasks and 3 candidates, better needs at least 7 wins and no loss" in first
    assert seen.trials == 4 * 12 * 3
    assert "± 0.05" in second


def test_too_few_tasks_are_said_to_be_too_few() -> None:
    first, second = visible(candidates=1, tasks=4, repeats=9, alpha=0.05, margin=0.05).sentences()
    assert "can't be shown: 6 tasks" in first and "can't be shown here" in second


def test_a_baseline_alone_has_nothing_to_show() -> None:
    assert "nothing to compare" in visible(0, 3, 2, 0.05, 0.05).sentences()[0]


@pytest.mark.parametrize("candidates", [1, 2, 3, 5])
@pytest.mark.parametrize("tasks", [6, 9, 12, 20])
def test_the_promise_is_what_the_test_keeps(candidates: int, tasks: int) -> None:
    seen = visible(candidates, tasks, 1, 0.05, 0.05)
    for losses, wins in enumerate(seen.wins):
        values = [1.0] * wins + [-1.0] * losses + [0.0] * (tasks - wins - losses)
        assert candidates * statistics.two_sided(values) <= 0.05
