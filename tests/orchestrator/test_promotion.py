"""The gate: which verdicts are promoted, by whom, and which never."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import database, states
from orchestrator.campaign_store import Judged
from orchestrator.config import Promotion, Settings
from orchestrator.errors import Failed, Refused, SiaError
from orchestrator.generations import Ledger
from orchestrator.promotion import find_better, gate, go_back

A, B, C = "a" * 40, "b" * 40, "c" * 40
BETTER = Judged("c0001", "cand", A, B, B, "tree-b", "better", {})


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(database.connect(tmp_path / "sia.db")) as opened:
        Ledger(opened).found(A, "tree-a")
        yield opened


@pytest.fixture
def ledger(connection: sqlite3.Connection) -> Ledger:
    return Ledger(connection)


def settings(policy: str = "ask") -> Settings:
    return Settings(promotion=Promotion(policy=policy))  # type: ignore[arg-type]


def promoted(ledger: Ledger, judged: Judged = BETTER) -> None:
    ledger.stage(judged.arm, judged.judged, judged.tree, campaign=None, old=judged.baseline)
    ledger.approve("person")
    ledger.freeze(0)
    ledger.moved()
    ledger.count_launch()


def test_better_passes(ledger: Ledger) -> None:
    gate(ledger, settings(), BETTER, None)
    gate(ledger, settings("auto"), BETTER, None)


@pytest.mark.parametrize("verdict", ["equivalent", "inconclusive"])
def test_thin_verdicts_need_a_persons_reason(ledger: Ledger, verdict: str) -> None:
    judged = replace(BETTER, verdict=verdict)
    with pytest.raises(Refused, match=f"its verdict is {verdict}, not better"):
        gate(ledger, settings(), judged, None)
    gate(ledger, settings(), judged, "it fixes a crash")


REFUSED = {
    "worse": (replace(BETTER, verdict="worse"), "ask", "reason", "never promoted"),
    "disqualified": (replace(BETTER, verdict="disqualified"), "ask", "reason", "never promoted"),
    "stale": (replace(BETTER, baseline=C), "ask", "reason", "stale"),
    "same tree": (replace(BETTER, tree="tree-a"), "ask", None, "already"),
    "policy never": (BETTER, "never", "reason", "switched off"),
    "empty reason": (BETTER, "ask", "  ", "needs a reason"),
}


@pytest.mark.bad_input
@pytest.mark.parametrize("name", REFUSED)
def test_bad_input_promotion_is_refused(ledger: Ledger, name: str) -> None:
    judged, policy, accept, expected = REFUSED[name]
    with pytest.raises(SiaError, match=expected) as caught:
        gate(ledger, settings(policy), judged, accept)
    print(caught.value.render())
    assert caught.value.fix
    assert ledger.standing().promotion is None


@pytest.mark.bad_input
def test_bad_input_a_bad_tree_needs_a_person(ledger: Ledger) -> None:
    promoted(ledger)
    for _ in range(3):
        state = ledger.failed("exit code 3")
        if state == states.TRIAL:
            ledger.count_launch()
    ledger.returned()
    with pytest.raises(Refused, match="rolled back before") as caught:
        gate(ledger, settings("auto"), BETTER, None)
    print(caught.value.render())
    gate(ledger, settings(), BETTER, "the disk was full then")


def test_go_back_by_state(ledger: Ledger, connection: sqlite3.Connection) -> None:
    with pytest.raises(Failed, match="no good generation before"):
        go_back(connection, None, with_state=False)
    ledger.stage("cand", B, "tree-b", campaign=None, old=A)
    assert "withdrawn" in go_back(connection, None, with_state=False)
    ledger.stage("cand", B, "tree-b", campaign=None, old=A)
    ledger.approve("person")
    assert "given up" in go_back(connection, None, with_state=False)
    promoted(ledger)
    with pytest.raises(Failed, match="is open"):
        go_back(connection, 7, with_state=False)
    assert "rolled back" in go_back(connection, 1, with_state=False)
    assert ledger.standing().state == states.ROLLBACK
    assert ledger.bad("tree-b") is None  # a person ended it; it proved nothing
    assert ledger.generation(2).state == "bad"  # and yet it is no generation that runs or could be gone back to
    ledger.returned()
    ledger.died("too")
    assert "tried again" in go_back(connection, None, with_state=False)
    assert ledger.standing().state == states.STABLE


def test_going_back_between_freeze_and_ref(ledger: Ledger, connection: sqlite3.Connection) -> None:
    """The supervisor was killed there; the person does not want the promotion any more."""
    ledger.stage("cand", B, "tree-b", campaign=None, old=A)
    ledger.approve("person")
    ledger.freeze(7)
    assert "rolled back" in go_back(connection, None, with_state=False)
    assert ledger.standing().state == states.ROLLBACK
    ledger.returned()
    assert ledger.standing().generation.number == 1
    assert ledger.data().stdin_offset == 7


def _judge(connection: sqlite3.Connection, campaign: str, arm: str, baseline: str, difference: float) -> None:
    connection.execute(
        "INSERT OR IGNORE INTO campaign (id, created, finished, file, spec, baseline, state)"
        " VALUES (?, 1, 2, 'f', '{}', ?, 'done')",
        (campaign, baseline),
    )
    connection.execute(
        "INSERT INTO arm (campaign, name, role, proposed, judged, tree) VALUES (?, ?, 'candidate', 'p', ?, ?)",
        (campaign, arm, arm, f"tree-{arm}"),
    )
    numbers = f'{{"difference": {difference}}}'
    connection.execute("INSERT INTO verdict VALUES (?, ?, 'better', ?)", (campaign, arm, numbers))


def test_policy_takes_the_best_against_the_current_generation(ledger: Ledger, connection: sqlite3.Connection) -> None:
    assert find_better(connection) is None
    _judge(connection, "c1", "small", A, 0.1)
    _judge(connection, "c1", "large", A, 0.4)
    _judge(connection, "c2", "stale", C, 0.9)
    assert find_better(connection) == ("large", "c1")
    ledger.stage("large", "large", "tree-large", campaign="c1", old=A)
    assert find_better(connection) is None  # one at a time
    ledger.withdraw("no")
    assert find_better(connection) == ("small", "c1")  # and never the same one twice


def test_policy_leaves_to_people_what_they_had_run_again(ledger: Ledger, connection: sqlite3.Connection) -> None:
    _judge(connection, "c1", "twice", A, 0.4)
    _judge(connection, "c1", "other", A, 0.1)
    row = "INSERT INTO trial (id, campaign, arm, task, repeat, position, state) VALUES (?, 'c1', ?, 't', 1, 1, 'done')"
    for arm in ("twice", "other"):
        connection.execute(row, (f"t-{arm}", arm))
    connection.execute("INSERT INTO trial_attempt (trial, attempt, time, why) VALUES ('t-twice', 1, 1, 'asked')")
    assert find_better(connection) == ("other", "c1")
