"""From stored trial records to one verdict per candidate. Pure: no clock, no files, no chance but a fixed seed.

The rules, in the order they are applied to a candidate:

1. A trial that shows tampering, or a failed conformance check: `disqualified`. Its wins never count.
2. Pairs (task, repeat) in which a trial stayed invalid after its retries are left out and counted. More than 10 % left
   out, or left out on one side only, or because a person stepped in, or nothing left to compare: `inconclusive`.
3. Difference significantly above 0 and no guardrail worse than its tolerance: `better`; significantly below 0: `worse`.
4. Two one-sided tests place the difference within ± margin: `equivalent`. A broken guardrail is named beside it.
5. Else `inconclusive`, with the reason in words.

Holm's family is every candidate of the plan. One that is disqualified or can't be compared stays in it with p = 1, so
that the number of wins that the plan promised before the start holds whatever happens. Candidates that failed the
conformance check are known before the first trial: they are neither part of the plan nor of the family. The equivalence
tests are a family of their own. Intervals are 1 − alpha for each candidate, not adjusted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from orchestrator import guardrails, statistics
from orchestrator.campaign_view import BASELINE
from orchestrator.guardrails import Guardrail

Name = Literal["better", "worse", "equivalent", "inconclusive", "disqualified"]
MAX_EXCLUDED = 0.10  # of the pairs
SAME = 1e-9  # task means closer than this are a tie
EXACT_TO = 1e-12  # p values are compared with alpha up to this, since 0.05 is no binary fraction


@dataclass(frozen=True)
class Rules:
    """`[verdict]` of the campaign file."""

    alpha: float = 0.05
    margin: float = 0.05
    tolerance: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Observation:
    """What a verdict needs to know of one finished trial.

    `reward` is None only when `outcome` is invalid. `seconds` is wall clock, `cost` US dollars; None = unknown, not 0.
    `by_person`: it is invalid because a person killed it or spoke to it.
    """

    arm: str
    task: str
    repeat: int
    outcome: str
    reward: float | None
    disqualified: str | None = None
    tokens: float | None = 0
    iterations: float = 0
    seconds: float = 0.0
    parse_errors: float = 0
    cost: float | None = None
    by_person: bool = False

    @property
    def valid(self) -> bool:
        """Whether it says something about the agent."""
        return self.outcome != "invalid" and self.reward is not None


@dataclass(frozen=True)
class Verdict:
    """What a campaign concluded about one candidate, with the numbers behind it (`dataclasses.asdict` gives JSON).

    `difference` is candidate − baseline in mean reward over tasks; `low`, `high` its interval (None = unbounded);
    `p` two-sided, `p_adjusted` by Holm; `p_equivalent` by Holm over the equivalence tests. `wins`, `losses`, `ties`
    count tasks; `pairs` (task, repeat) of the plan, `excluded` those left out.
    """

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
    baseline_mean: float | None = None
    candidate_mean: float | None = None
    guardrails: tuple[Guardrail, ...] = ()


@dataclass(frozen=True)
class _Comparison:
    differences: dict[str, float]
    numbers: Verdict
    problem: str | None  # why the pairs can't carry a conclusion


def baseline_tampering(observations: Sequence[Observation]) -> str | None:
    """Evidence that the baseline itself cheated: the campaign has no ground to stand on then."""
    return next((o.disqualified for o in observations if o.arm == BASELINE and o.disqualified), None)


def judge(
    observations: Sequence[Observation],
    candidates: Sequence[str],
    rules: Rules,
    *,
    failed_before: Mapping[str, str] | None = None,
) -> dict[str, Verdict]:
    """One verdict per candidate. `candidates`: those of the plan; `failed_before`: out before the first trial, and why.

    Raises ValueError if the baseline is disqualified (see `baseline_tampering`).
    """
    if baseline_tampering(observations):
        raise ValueError("a disqualified baseline is nothing to compare with")
    verdicts = {
        arm: Verdict(arm, "disqualified", (f"conformance: {why}",)) for arm, why in (failed_before or {}).items()
    }
    compared = {}
    for arm in candidates:
        evidence = [o.disqualified for o in observations if o.arm == arm and o.disqualified]
        if evidence:
            verdicts[arm] = Verdict(arm, "disqualified", tuple(dict.fromkeys(evidence)))
        else:
            compared[arm] = _compare(observations, arm, rules)
    testable = {arm for arm, comparison in compared.items() if comparison.problem is None}
    differences = {arm: list(compared[arm].differences.values()) if arm in testable else [] for arm in candidates}
    raw = {arm: statistics.two_sided(differences[arm]) for arm in candidates}
    same = {arm: statistics.equivalence(values, rules.margin) if values else 1.0 for arm, values in differences.items()}
    adjusted, same_adjusted = statistics.holm(raw), statistics.holm(same)
    for arm, comparison in compared.items():
        if comparison.problem is not None:
            verdicts[arm] = replace(comparison.numbers, reasons=(comparison.problem,))
            continue
        bounds = statistics.interval(differences[arm], rules.alpha)
        numbers = replace(
            comparison.numbers,
            low=bounds.low,
            high=bounds.high,
            p=raw[arm],
            p_adjusted=adjusted[arm],
            p_equivalent=same_adjusted[arm],
        )
        verdicts[arm] = _conclude(numbers, rules, len(candidates))
    return {arm: verdicts[arm] for arm in (*candidates, *(failed_before or {}))}


def _compare(observations: Sequence[Observation], arm: str, rules: Rules) -> _Comparison:
    ours = {(o.task, o.repeat): o for o in observations if o.arm == arm}
    base = {(o.task, o.repeat): o for o in observations if o.arm == BASELINE}
    keys = sorted(ours.keys() | base.keys())
    good = [key for key in keys if _valid(ours, key) and _valid(base, key)]
    by_task: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for key in good:
        by_task[key[0]].append((base[key].reward or 0.0, ours[key].reward or 0.0))
    base_means = {task: sum(b for b, _ in pairs) / len(pairs) for task, pairs in by_task.items()}
    our_means = {task: sum(c for _, c in pairs) / len(pairs) for task, pairs in by_task.items()}
    differences = {task: our_means[task] - base_means[task] for task in by_task}
    wins = sum(difference > SAME for difference in differences.values())
    losses = sum(difference < -SAME for difference in differences.values())
    numbers = Verdict(
        arm,
        "inconclusive",
        difference=_mean(differences),
        wins=wins,
        losses=losses,
        ties=len(differences) - wins - losses,
        tasks=len(differences),
        pairs=len(keys),
        excluded=len(keys) - len(good),
        baseline_mean=_mean(base_means),
        candidate_mean=_mean(our_means),
        guardrails=guardrails.check(
            {name: [getattr(base[key], name) for key in good] for name in guardrails.NAMES},
            {name: [getattr(ours[key], name) for key in good] for name in guardrails.NAMES},
            rules.tolerance,
            rules.alpha,
        ),
    )
    return _Comparison(differences, numbers, _exclusion_problem(keys, good, ours, base))


def _exclusion_problem(
    keys: Sequence[tuple[str, int]],
    good: Sequence[tuple[str, int]],
    ours: Mapping[tuple[str, int], Observation],
    base: Mapping[tuple[str, int], Observation],
) -> str | None:
    excluded = len(keys) - len(good)
    if not good:
        return "no pair of trials is left to compare"
    stepped_in = sum(trial.by_person for trials in (ours, base) for trial in trials.values())
    if (
        stepped_in
    ):  # chosen by somebody who could see how it went: by leaving out one on each side anything can be shown
        return f"a person killed or spoke to {stepped_in} of the trials: run them again (`sia campaign rerun TRIAL`)"
    if excluded > MAX_EXCLUDED * len(keys) + EXACT_TO:
        return f"{excluded} of {len(keys)} pairs are excluded (invalid trials), more than 10 %"
    candidate_side = sum(not _valid(ours, key) for key in keys)
    baseline_side = sum(not _valid(base, key) for key in keys)
    if bool(candidate_side) != bool(baseline_side):
        side = "candidate" if candidate_side else "baseline"
        return f"{excluded} of {len(keys)} pairs are excluded, all because of the {side}'s trials"
    return None


def _conclude(numbers: Verdict, rules: Rules, family: int) -> Verdict:
    """Rules 3 to 5 on a candidate whose pairs can carry a conclusion."""
    assert numbers.p_adjusted is not None and numbers.p_equivalent is not None and numbers.difference is not None
    significant = numbers.p_adjusted <= rules.alpha + EXACT_TO
    broken = tuple(guardrail.note for guardrail in numbers.guardrails if guardrail.broken)
    counted = f"{numbers.wins} won, {numbers.losses} lost, {numbers.ties} tied of {numbers.tasks} tasks"
    over = f" (Holm over {family} candidates)" if family > 1 else ""
    tested = f"{numbers.difference:+.3f} in mean reward, p = {numbers.p_adjusted:.3g}{over}"
    if significant and numbers.difference > 0 and not broken:
        return replace(numbers, verdict="better", reasons=(tested, counted))
    if significant and numbers.difference < 0:
        return replace(numbers, verdict="worse", reasons=(tested, counted, *broken))
    if numbers.p_equivalent <= rules.alpha + EXACT_TO:
        within = f"within ± {rules.margin:g} of the baseline, p = {numbers.p_equivalent:.3g}{over}"
        return replace(numbers, verdict="equivalent", reasons=(within, counted, *broken))
    if significant:
        return replace(numbers, reasons=(f"the reward is better ({tested}), but a guardrail is broken", *broken))
    why = [f"neither a difference nor its absence is shown: {tested}", counted]
    needed = statistics.wins_needed(family, rules.alpha)
    if needed > numbers.tasks:
        why.append(f"{numbers.tasks} tasks can't show more: a difference needs at least {needed}")
    return replace(numbers, reasons=(*why, *broken))


def _valid(trials: Mapping[tuple[str, int], Observation], key: tuple[str, int]) -> bool:
    return key in trials and trials[key].valid


def _mean(values: Mapping[str, float]) -> float | None:
    return sum(values.values()) / len(values) if values else None
