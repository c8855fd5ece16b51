"""Sealed tasks give the final word, so each code is run on them once: whoever may try again can pick the lucky try."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from orchestrator.campaign_view import BASELINE, ArmRow, TaskRow
from orchestrator.errors import Refused
from orchestrator.untrusted import one_line

_RAN = """
SELECT c.id FROM campaign_task k
JOIN campaign c ON c.id = k.campaign
JOIN arm a ON a.campaign = c.id AND a.role = 'candidate' AND a.tree = :tree
WHERE k.key = :key AND k.split = 'sealed' AND EXISTS (
    SELECT 1 FROM trial t
    WHERE t.campaign = c.id AND t.arm = a.name AND t.task = k.name AND t.state = 'done' AND t.outcome != 'invalid'
) ORDER BY c.created LIMIT 1"""


@dataclass(frozen=True)
class Used:
    """A candidate that a sealed task has judged already, in an earlier campaign."""

    arm: str
    task: str
    campaign: str


def used(connection: sqlite3.Connection, tasks: Iterable[TaskRow], arms: Iterable[ArmRow]) -> list[Used]:
    """Pairs of candidates (by the tree that runs) and sealed tasks (by their content) that are used up."""
    found = []
    sealed = [task for task in tasks if task.split == "sealed"]
    for arm in arms:
        for task in sealed if arm.name != BASELINE else ():
            row = connection.execute(_RAN, {"tree": arm.tree, "key": task.key}).fetchone()
            if row is not None:
                found.append(Used(arm.name, task.name, str(row[0])))
    return found


def refuse_again(connection: sqlite3.Connection, tasks: Iterable[TaskRow], arms: Iterable[ArmRow], file: Path) -> None:
    """Raise Refused, with every pair named, if a sealed task has judged one of these candidates before."""
    pairs = used(connection, tasks, arms)
    if pairs:
        named = "; ".join(
            f"{one_line(pair.arm, 60)} on {one_line(pair.task, 60)} (campaign {pair.campaign})" for pair in pairs[:10]
        )
        raise Refused(
            f"sealed tasks are run once for each code, and these were: {named}",
            where=str(file),
            fix="take other tasks, or judge a changed candidate; `sia campaign show` has what they said",
        )
