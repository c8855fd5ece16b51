"""A campaign's plan: which trials, in which order, and what could be seen at this size. Pure functions."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator import statistics
from orchestrator.campaign_view import BASELINE

MAX_RETRIES = 3  # of a trial whose outcome is invalid, that is, of our own failures


@dataclass(frozen=True)
class PlannedTrial:
    """One trial to run. `position` counts from 0 in the order of the plan."""

    id: str
    arm: str
    task: str
    repeat: int
    position: int


@dataclass(frozen=True)
class Visible:
    """What the plan could show, known before anything is spent.

    `wins` lists wins that a candidate needs for `better` with 0, 1, 2… losses against them (all of the same size, in
    the hardest place of Holm's order), as far as they fit into the tasks.
    """

    tasks: int
    candidates: int
    trials: int
    alpha: float
    margin: float
    wins: tuple[int, ...]
    wins_without_loss: int
    tasks_for_equivalence: int

    def sentences(self) -> tuple[str, ...]:
        """The same in words, for the person who starts the campaign."""
        if not self.candidates:
            return (f"{count(self.trials, 'trial')} of the baseline alone: nothing to compare.",)
        head = f"With {count(self.tasks, 'task')} and {count(self.candidates, 'candidate')}"
        if not self.wins:
            first = (
                f"{head}, better or worse can't be shown: {self.wins_without_loss} tasks with a difference are needed "
                f"(alpha {self.alpha:g})."
            )
        else:
            more = "".join(f", {wins} with {count(losses, 'loss')}" for losses, wins in enumerate(self.wins) if losses)
            first = f"{head}, better needs at least {self.wins[0]} wins and no loss{more} (alpha {self.alpha:g})."
        enough = self.tasks >= self.tasks_for_equivalence
        second = f"Equivalent (± {self.margin:g}) needs at least {self.tasks_for_equivalence} tasks" + (
            "." if enough else ": it can't be shown here."
        )
        return first, second


def plan(campaign: str, candidates: Sequence[str], tasks: Sequence[str], repeats: int, seed: int) -> list[PlannedTrial]:
    """All trials, interleaved: for each repeat and task, all arms right after one another, in an order drawn anew.

    So arms meet the same machine conditions (a slow hour, a full disk) and none is always first. The same arguments
    give the same plan.
    """
    chance = random.Random(f"{seed}/plan")
    arms = [BASELINE, *candidates]
    cells = []
    for repeat in range(1, repeats + 1):
        for task in chance.sample(list(tasks), len(tasks)):
            cells += [(arm, task, repeat) for arm in chance.sample(arms, len(arms))]
    width = len(str(len(cells)))
    return [
        PlannedTrial(f"{campaign}t{position + 1:0{width}}", arm, task, repeat, position)
        for position, (arm, task, repeat) in enumerate(cells)
    ]


def visible(candidates: int, tasks: int, repeats: int, alpha: float, margin: float) -> Visible:
    """What `candidates` arms against the baseline on `tasks` tasks could show at error rate `alpha`."""
    family = max(1, candidates)
    wins = []
    for losses in range(3):
        needed = statistics.wins_needed(family, alpha, losses)
        if needed + losses > tasks:
            break
        wins.append(needed)
    return Visible(
        tasks=tasks,
        candidates=candidates,
        trials=(candidates + 1) * tasks * repeats,
        alpha=alpha,
        margin=margin,
        wins=tuple(wins),
        wins_without_loss=statistics.wins_needed(family, alpha),
        tasks_for_equivalence=statistics.tasks_for_equivalence(family, alpha),
    )


def count(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`, `2 losses`."""
    plural = noun + ("es" if noun.endswith("s") else "s")
    return f"{number} {noun if number == 1 else plural}"
