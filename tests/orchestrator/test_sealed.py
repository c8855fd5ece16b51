"""Which candidates have had their one run on a sealed task."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from sqlite3 import Connection

import pytest

from orchestrator import database
from orchestrator.campaign_view import ArmRow, TaskRow
from orchestrator.errors import Refused
from orchestrator.sealed import Used, refuse_again, used

ARMS = (ArmRow("baseline", "baseline", "b", "b", "old"), ArmRow("new", "candidate", "n", "n", "tree"))
TASKS = (TaskRow("t", "/t", "key", "sealed"), TaskRow("open", "/o", "other", "train"))


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Connection]:
    with closing(database.connect(tmp_path / "sia.db")) as opened:
        opened.execute(
            "INSERT INTO campaign (id, created, file, spec, baseline, state) VALUES ('c1', 1, '', '{}', 'b', 'failed')"
        )
        for place, (name, key, split) in enumerate((("t", "key", "sealed"), ("open", "other", "train"))):
            opened.execute("INSERT INTO campaign_task VALUES ('c1', ?, ?, '/t', ?, ?)", (place, name, key, split))
        for arm in ARMS:
            opened.execute(
                "INSERT INTO arm (campaign, name, role, proposed, tree) VALUES ('c1', ?, ?, 'p', ?)",
                (arm.name, arm.role, arm.tree),
            )
        yield opened


def trial(connection: Connection, outcome: str | None, state: str = "done", arm: str = "new") -> None:
    connection.execute(
        "INSERT OR REPLACE INTO trial (id, campaign, arm, task, repeat, position, state, outcome)"
        " VALUES (?, 'c1', ?, 't', 1, 0, ?, ?)",
        (arm, arm, state, outcome),
    )


def test_only_a_run_that_gave_something_counts(connection: Connection) -> None:
    assert used(connection, TASKS, ARMS) == []
    trial(connection, None, "planned")
    trial(connection, "completed", arm="baseline")
    assert used(connection, TASKS, ARMS) == []
    trial(connection, "invalid")
    assert used(connection, TASKS, ARMS) == []
    trial(connection, "crashed")  # whatever became of the campaign, its results could be looked at
    assert used(connection, TASKS, ARMS) == [Used("new", "t", "c1")]


def test_other_code_or_another_task_may_be_run(connection: Connection) -> None:
    trial(connection, "completed")
    assert used(connection, TASKS, (ArmRow("new", "candidate", "n", "n", "changed"),)) == []
    assert used(connection, (TaskRow("t", "/t", "changed", "sealed"),), ARMS) == []
    assert used(connection, (TaskRow("t", "/t", "key", "train"),), ARMS) == []
    assert len(used(connection, TASKS, (ArmRow("renamed", "candidate", "n", "n", "tree"),))) == 1


def test_the_refusal_names_them(connection: Connection) -> None:
    trial(connection, "completed")
    with pytest.raises(Refused, match=r"new on t \(campaign c1\)"):
        refuse_again(connection, TASKS, ARMS, Path("campaign.toml"))
