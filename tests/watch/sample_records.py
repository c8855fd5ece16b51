"""What instances of a sample home leave in the stores: exchanges, outcomes, records of trials."""

from __future__ import annotations

import random
from collections.abc import Mapping

from orchestrator.campaign_view import BASELINE
from orchestrator.journal import Asked, Exchange, Journal
from orchestrator.plan import PlannedTrial
from orchestrator.protocol import EngineUsage
from orchestrator.trial_record import OutcomeName, TrialRecord
from tests.watch.sample_text import HOSTILE, SCHEMA, SYSTEM

PRICE = 0.000004  # dollars per token


def hostile_entry() -> str:
    shown = "".join(c for c in HOSTILE if c >= " " or c in "\t\n")  # XML carries no other controls
    return f"<reasoning{{id}}>\n<![CDATA[{shown}]]>\n</reasoning>"


def append(journal: Journal, moment: float, context: str, answer: str) -> Exchange:
    usage = EngineUsage(prompt=len(context) // 4, completion=len(answer) // 4, cached=0, cost=None)
    asked = Asked(len(context), "0" * 64, SYSTEM, SCHEMA, context, seed=1, max_tokens=8192)
    exchange = Exchange(journal.entries + 1, moment, "infer", asked, answer, 0.21, usage=usage)
    journal.append(exchange)
    return exchange


# How often an arm succeeds; the baseline does in every second repeat of a task.
MEANS: Mapping[str, float] = {"show-more": 1.0, "worse": 0.0, "trim-logs": 0.5, "careful-reader": 0.9}


def result(trial: PlannedTrial, chance: random.Random) -> tuple[OutcomeName, str, float | None]:
    if trial.arm in ("show-more", "worse"):
        return "completed", "", MEANS[trial.arm]
    if trial.arm == BASELINE:
        return "completed", "", float((len(trial.task) + trial.repeat) % 2)
    if trial.position % 29 == 23:
        return "invalid", "engine outage: it closed the line", None
    if trial.position % 17 == 11:
        return "limit", "iterations", 0.0
    if trial.position % 31 == 19:
        return "crashed", "exit code 1", 0.0
    return "completed", "", float(chance.random() < MEANS.get(trial.arm, 0.4))


def record(
    campaign: str,
    trial: PlannedTrial,
    outcome: OutcomeName,
    detail: str,
    reward: float | None,
    seconds: float,
    steps: int = 8,
    head: str = "",
) -> TrialRecord:
    tokens = steps * 812
    cheated = trial.arm == "cheater"
    return TrialRecord(
        id=trial.id,
        journal=trial.id,
        campaign=campaign,
        arm=trial.arm,
        task=trial.task,
        split="train",
        repeat=trial.repeat,
        outcome=outcome,
        detail=detail,
        reward=reward,
        disqualified="its log shows an answer that was never given: <write_stdout>42</write_stdout>"
        if cheated
        else None,
        tokens=tokens,
        prompt_tokens=tokens - 300,
        completion_tokens=300,
        cached_tokens=0,
        iterations=steps,
        cost=tokens * PRICE,
        seconds=seconds,
        engine_seconds=seconds / 2,
        verifier_seconds=0.2,
        exit_code=0,
        parse_errors=steps // 6,
        repeated_actions=0,
        deletes=1,
        context_growth=120.0,
        peak_memory_mb=44.0,
        memory_enforcer="cgroup",
        forgeable=False,
        changes=3,
        tree="4" * 40,
        task_key="5" * 64,
        journal_head=head,
    )
