"""The ledger by itself: its moves, its invariants under any sequence of moves, and reopening at any moment."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestrator import database, states
from orchestrator.errors import Failed
from orchestrator.generations import TRIES, Ledger


def commit(number: int) -> str:
    return f"{number:040x}"


@pytest.fixture
def connection(tmp_path: Path):
    with closing(database.connect(tmp_path / "sia.db")) as opened:
        yield opened


@pytest.fixture
def ledger(connection: sqlite3.Connection) -> Ledger:
    made = Ledger(connection)
    made.found(commit(1), "tree1")
    return made


def stage(ledger: Ledger, number: int, accepted: str | None = None) -> None:
    old = ledger.standing().generation.commit
    ledger.stage(f"c{number}", commit(number), f"tree{number}", campaign=None, accepted=accepted, old=old)


def to_trial(ledger: Ledger, number: int, offset: int = 0) -> None:
    stage(ledger, number)
    ledger.approve("person")
    ledger.freeze(offset)
    ledger.moved()


def boot(ledger: Ledger, nonce: str) -> None:
    ledger.count_launch()
    ledger.begin_launch(nonce, None)


def test_every_transition_ends_in_a_known_state() -> None:
    for (state, _), after in states.TRANSITIONS.items():
        assert state in states.STATES
        assert after in states.STATES
    with pytest.raises(states.IllegalMove):
        states.after(states.STABLE, "healthy")


def test_found_is_recorded_once(ledger: Ledger) -> None:
    assert ledger.found(commit(9), "other").commit == commit(1)
    assert len(ledger.generations()) == 1


def test_a_promotion_that_holds_up(ledger: Ledger) -> None:
    to_trial(ledger, 2, offset=17)
    assert ledger.standing().last_good.number == 1
    boot(ledger, "n1")
    assert ledger.standing().promotion.tries == TRIES - 1
    ledger.healthy("n1")
    standing = ledger.standing()
    assert (standing.state, standing.generation.number, standing.last_good.number) == (states.STABLE, 2, 2)
    assert ledger.promotions()[0].outcome == "healthy"
    assert ledger.data().stack == (1,)


def test_a_promotion_that_does_not(ledger: Ledger) -> None:
    to_trial(ledger, 2, offset=17)
    levels = set()
    for attempt in range(TRIES):
        boot(ledger, f"n{attempt}")
        ledger.set_offset(99)  # it read further
        levels.add(ledger.data().upper)
        state = ledger.failed("exit code 3")
    assert state == states.ROLLBACK
    assert len(levels) == TRIES  # a fresh level for every boot
    ledger.returned()
    standing = ledger.standing()
    assert (standing.state, standing.generation.number, standing.probation) == (states.STABLE, 1, True)
    assert ledger.data().stack == (1,)
    assert ledger.data().upper not in levels
    assert ledger.data().stdin_offset == 17  # messages from F again: the old one's state never held them
    assert ledger.bad("tree2") == "generation 2: exit code 3"
    assert ledger.promotions()[0].outcome == "rolled_back"
    ledger.died("it died too")
    assert ledger.standing().state == states.SAFE


def test_boots_start_from_the_offset_again(ledger: Ledger) -> None:
    to_trial(ledger, 2, offset=17)
    boot(ledger, "n1")
    ledger.set_offset(40)
    ledger.failed("crash")
    boot(ledger, "n2")
    assert ledger.data().stdin_offset == 17


def test_one_promotion_at_a_time(ledger: Ledger) -> None:
    stage(ledger, 2)
    with pytest.raises(Failed, match=r"promotion 1 .* is open"):
        stage(ledger, 3)
    ledger.withdraw("changed my mind")
    stage(ledger, 3)


def test_a_stale_verdict_is_not_staged(ledger: Ledger) -> None:
    with pytest.raises(Failed, match="judged against"):
        ledger.stage("c", commit(2), "tree2", campaign=None, old=commit(8))
    assert ledger.standing().promotion is None


def test_an_outage_gives_one_try_back(ledger: Ledger) -> None:
    to_trial(ledger, 2)
    boot(ledger, "n1")
    assert ledger.outage("engine") == states.HOLD
    assert ledger.standing().promotion.tries == TRIES
    ledger.engine_back()
    for attempt in range(TRIES):
        boot(ledger, f"m{attempt}")
        last = ledger.outage("engine")
        if attempt + 1 < TRIES:
            ledger.engine_back()
    assert last == states.ROLLBACK
    assert ledger.standing().promotion.launches == TRIES + 1


def test_healthy_only_by_a_launch_of_this_promotion(ledger: Ledger) -> None:
    ledger.begin_launch("before", None)
    to_trial(ledger, 2)
    boot(ledger, "n1")
    for nonce in ("before", "never"):
        with pytest.raises(states.IllegalMove):
            ledger.healthy(nonce)
    assert ledger.standing().state == states.TRIAL


def test_a_person_goes_back_and_the_left_one_is_bad(ledger: Ledger) -> None:
    to_trial(ledger, 2)
    boot(ledger, "n1")
    ledger.healthy("n1")
    ledger.request(1, with_state=False)
    ledger.freeze(5)
    ledger.moved()
    boot(ledger, "n2")
    ledger.healthy("n2")
    assert ledger.standing().generation.number == 1
    assert ledger.generation(2).state == "bad"
    assert ledger.bad("tree2")
    assert ledger.bad("tree1") is None
    with pytest.raises(Failed, match="generation 2 is bad"):
        ledger.request(2, with_state=False)


def test_going_back_with_state_starts_from_the_data_of_then(ledger: Ledger) -> None:
    to_trial(ledger, 2)
    boot(ledger, "n1")
    ledger.healthy("n1")
    then = ledger.promotion(1).frozen
    ledger.request(1, with_state=True)
    promotion = ledger.freeze(5)
    assert promotion.base == then
    assert promotion.frozen is not None and len(promotion.frozen) == 2
    ledger.moved()
    boot(ledger, "n2")
    assert ledger.data().stack == then


def test_freezing_twice_is_freezing_once(ledger: Ledger) -> None:
    stage(ledger, 2)
    ledger.approve("person")
    first = ledger.freeze(5)
    assert ledger.freeze(77) == first
    with pytest.raises(states.IllegalMove):
        ledger.give_up("too late")


def test_crashes_are_counted_across_openings(ledger: Ledger, connection: sqlite3.Connection) -> None:
    assert ledger.crash("a") == 1
    assert Ledger(connection).crash("b") == 2
    ledger.held_up()
    assert ledger.crash("c") == 3
    ledger.steady()
    assert ledger.crash("d") == 1


class LedgerMachine(RuleBasedStateMachine):
    """Any sequence of legal moves, with the database opened again between any two (a kill), keeps the invariants."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()
        self.path = Path(self.directory.name) / "sia.db"
        self.open()
        self.ledger.found(commit(1), "tree1")
        self.next = 2
        self.nonces = 0
        self.uppers: list[int] = []

    def open(self) -> None:
        self.connection = database.connect(self.path)
        self.connection.execute("PRAGMA synchronous=OFF")  # speed; kills are of the process here
        self.ledger = Ledger(self.connection)

    def teardown(self) -> None:
        self.connection.close()
        self.directory.cleanup()

    def state(self) -> str:
        return self.ledger.standing().state

    @rule()
    def kill(self) -> None:
        self.connection.close()
        self.open()

    @precondition(lambda self: self.state() in (states.STABLE, states.SAFE))
    @rule()
    def stage(self) -> None:
        stage(self.ledger, self.next)
        self.next += 1

    @precondition(lambda self: self.state() == states.STAGED)
    @rule(yes=st.booleans())
    def decide(self, yes: bool) -> None:
        if yes:
            self.ledger.approve("person")
        else:
            self.ledger.withdraw("no")

    @precondition(lambda self: self.state() == states.INTENT)
    @rule(offset=st.integers(0, 1000), step=st.sampled_from(["freeze", "moved", "give_up", "abandon", "foreign_ref"]))
    def intent(self, offset: int, step: str) -> None:
        frozen = self.ledger.standing().promotion.frozen
        if step == "freeze":
            self.ledger.freeze(offset)
        elif step == "moved" and frozen is not None:
            self.ledger.moved()
        elif step == "give_up" and frozen is None:
            self.ledger.give_up("late")
        elif step == "abandon" and frozen is not None:
            self.ledger.abandon("a person")
        elif step == "foreign_ref" and frozen is not None:
            self.ledger.foreign_ref("odd")

    @precondition(lambda self: self.state() == states.TRIAL)
    @rule(how=st.sampled_from(["healthy", "failed", "outage", "stop", "abandon", "killed"]))
    def trial(self, how: str) -> None:
        if self.ledger.standing().promotion.tries == 0:
            self.ledger.failed("none left")
            return
        nonce = f"n{self.nonces}"
        self.nonces += 1
        boot(self.ledger, nonce)
        assert self.ledger.data().upper not in self.uppers
        self.uppers.append(self.ledger.data().upper)
        if how == "healthy":
            self.ledger.healthy(nonce)
        elif how == "failed":
            self.ledger.failed("crash")
        elif how == "outage":
            self.ledger.outage("out")
        elif how == "stop":
            self.ledger.give_back("stopped")
        elif how == "abandon":
            self.ledger.abandon("a person")

    @precondition(lambda self: self.state() == states.HOLD)
    @rule(end=st.booleans())
    def hold(self, end: bool) -> None:
        if end:
            self.ledger.abandon("a person")
        elif (self.ledger.standing().cause or "").startswith("ref:"):
            self.ledger.ref_back()
        else:
            self.ledger.engine_back()

    @precondition(lambda self: self.state() == states.ROLLBACK)
    @rule()
    def return_(self) -> None:
        self.ledger.returned()

    @precondition(lambda self: self.state() == states.STABLE)
    @rule(how=st.sampled_from(["crash", "died", "held_up", "steady"]))
    def stable(self, how: str) -> None:
        if how == "crash":
            self.ledger.crash("x")
        elif how == "died" and self.ledger.standing().probation:
            self.ledger.died("x")
        elif how == "steady":
            self.ledger.steady()
        else:
            self.ledger.held_up()

    @precondition(lambda self: self.state() == states.SAFE)
    @rule()
    def retry(self) -> None:
        self.ledger.retry()

    @precondition(lambda self: self.state() in (states.STABLE, states.SAFE))
    @rule(data=st.data(), with_state=st.booleans())
    def request(self, data: st.DataObject, with_state: bool) -> None:
        number = data.draw(st.sampled_from([generation.number for generation in self.ledger.generations()]))
        try:
            self.ledger.request(number, with_state=with_state)
        except Failed:
            target = self.ledger.generation(number)
            assert target.state != "good" or number == self.ledger.standing().generation.number

    @rule(event=st.sampled_from(sorted({event for _, event in states.TRANSITIONS})))
    def illegal(self, event: str) -> None:
        """A move that the table does not allow changes nothing."""
        if (self.state(), event) in states.TRANSITIONS:
            return
        calls = {
            "approve": lambda: self.ledger.approve("person"),
            "withdraw": lambda: self.ledger.withdraw("x"),
            "freeze": lambda: self.ledger.freeze(0),
            "moved": self.ledger.moved,
            "give_up": lambda: self.ledger.give_up("x"),
            "launch": self.ledger.count_launch,
            "healthy": lambda: self.ledger.healthy("n0"),
            "failed": lambda: self.ledger.failed("x"),
            "outage": lambda: self.ledger.outage("x"),
            "engine_back": self.ledger.engine_back,
            "abandon": lambda: self.ledger.abandon("x"),
            "returned": self.ledger.returned,
            "died": lambda: self.ledger.died("x"),
            "retry": self.ledger.retry,
        }
        if event in calls:
            before = (self.ledger.standing(), self.ledger.data(), self.ledger.promotions())
            with pytest.raises(states.IllegalMove):
                calls[event]()
            assert before == (self.ledger.standing(), self.ledger.data(), self.ledger.promotions())

    @invariant()
    def invariants(self) -> None:
        standing = self.ledger.standing()
        promotions = self.ledger.promotions()
        opened = [promotion for promotion in promotions if promotion.outcome is None]
        assert len(opened) <= 1
        assert (standing.promotion is not None) == bool(opened)
        assert standing.last_good.state in ("good", "bad")
        assert standing.last_good.state == "good" or standing.state != states.STABLE
        for promotion in promotions:
            assert promotion.launches <= TRIES + 1
            assert promotion.outcome != "healthy" or promotion.launches > 0
        if standing.promotion:
            allowed = {standing.promotion.old_commit, standing.promotion.new_commit}
            assert standing.generation.commit in allowed
        elif standing.state == states.STABLE:
            assert standing.generation.state == "good"
        data = self.ledger.data()
        assert data.upper not in data.stack
        assert len(set(data.stack)) == len(data.stack)


LedgerMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLedgerMachine = LedgerMachine.TestCase
