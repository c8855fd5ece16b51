"""A campaign as its trials end: read in pieces, judged as at the end, and what is left of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import campaign, database, locks
from orchestrator.campaign_store import CampaignStore
from orchestrator.campaign_view import BASELINE, ArmRow, TaskRow, lock_path
from orchestrator.config import Campaign
from orchestrator.errors import UsageError
from orchestrator.home import Home
from orchestrator.plan import plan
from orchestrator.trial_record import TrialRecord
from orchestrator.watch import campaign_feed
from orchestrator.watch.campaign_feed import CampaignFeed
from tests.watch.reading_kit import make_home

TASKS = tuple(f"task{number}" for number in range(8))
RECORD = TrialRecord(
    **dict.fromkeys(TrialRecord.__dataclass_fields__),  # type: ignore[arg-type]
)


class Running:
    """A campaign at work whose trials end when a test says so."""

    def __init__(self, home: Home, stack: ExitStack) -> None:
        self.home = home
        self.connection = stack.enter_context(closing(database.connect(home.database)))
        self.store = CampaignStore(self.connection)
        spec = Campaign.model_validate({"candidates": ["good"], "tasks": ["t/*"], "repeats": 1, "engine": "e"})
        arms = [
            ArmRow(name, role, "b" * 40, "b" * 40, "t")
            for name, role in ((BASELINE, "baseline"), ("good", "candidate"))
        ]

        def planned(id: str) -> list:  # type: ignore[type-arg]
            stack.enter_context(locks.hold(lock_path(home, id), "it runs", "wait"))
            return plan(id, ["good"], TASKS, 1, spec.seed)

        self.id = self.store.create(
            file="campaign.toml",
            spec=spec.model_dump(mode="json"),
            setup={},
            baseline="a" * 40,
            arms=arms,
            tasks=[TaskRow(name, f"/t/{name}", "k", "train") for name in TASKS],
            plan=planned,
        )
        self.trials = list(self.store.view(self.id).trials)

    def start(self, number: int) -> str:
        trial = self.trials[number]
        self.store.start_trial(trial.id, "label")
        return trial.id

    def finish(self, number: int, cost: float | None = 0.25, **values: object) -> None:
        trial = self.trials[number]
        record = replace(
            RECORD, id=trial.id, journal=trial.id, campaign=self.id, arm=trial.arm, task=trial.task, split="train",
            repeat=trial.repeat, outcome="completed", detail="", reward=float(trial.arm == "good"), tokens=100,
            iterations=4, cost=cost, seconds=10.0, parse_errors=0, notes=(), connections=(), changes=0,
        )  # fmt: skip
        self.store.finish_trial(replace(record, **values))  # type: ignore[arg-type]
        self.connection.execute("UPDATE trial SET started = finished - 10 WHERE id = ?", (trial.id,))


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with ExitStack() as stack:
        yield Running(make_home(tmp_path / "repo"), stack)


@pytest.fixture
def feed(running: Running) -> Iterator[CampaignFeed]:
    with closing(CampaignFeed(running.home, "last")) as made:
        yield made


def test_nothing_is_known_before_the_first_trial_has_ended(running: Running, feed: CampaignFeed) -> None:
    now = feed.poll()
    assert (feed.id, now.view.state, now.view.done, now.so_far, now.running) == (running.id, "running", 0, (), 0)
    assert (now.left.seconds, now.left.cost) == (None, None)


def test_what_is_said_so_far_is_at_last_the_verdict(running: Running, feed: CampaignFeed) -> None:
    for number in range(len(running.trials)):
        running.start(number)
        running.finish(number)
        feed.poll()
    said = campaign_feed.so_far(feed.poll().view)
    final = campaign.conclude(running.store.view(running.id))
    assert final["good"].verdict == "better"
    (one,) = said
    assert (one.arm, one.rounds) == ("good", len(TASKS))
    assert {name: one.numbers[name] for name in ("verdict", "low", "high", "p_adjusted")} == {
        name: getattr(final["good"], name) for name in ("verdict", "low", "high", "p_adjusted")
    }
    running.store.conclude(running.id, final.values())
    now = feed.poll()
    assert (now.view.state, now.so_far, now.view.verdicts["good"]["verdict"]) == ("done", (), "better")
    assert (now.left.seconds, now.left.cost) == (0.0, 0.0)


def test_half_a_round_counts_for_nobody(running: Running, feed: CampaignFeed) -> None:
    running.finish(0)
    assert feed.poll().so_far == ()
    running.finish(1)  # the other arm on the same task
    (one,) = campaign_feed.so_far(feed.poll().view)
    assert (one.rounds, one.numbers["tasks"], one.numbers["excluded"]) == (1, 1, 0)


def test_finished_trials_are_read_once(running: Running, feed: CampaignFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    original = CampaignFeed._trial
    monkeypatch.setattr(CampaignFeed, "_trial", lambda self, id: read.append(id) or original(self, id))
    feed.poll()
    for number in range(4):
        running.finish(number)
        feed.poll()
        feed.poll()
    assert read == [trial.id for trial in running.trials[:4]]


def test_a_trial_that_is_run_again_is_open_again(running: Running, feed: CampaignFeed) -> None:
    running.finish(0)
    assert feed.poll().view.done == 1
    running.store.plan_again([running.trials[0].id])
    now = feed.poll()
    assert (now.view.done, now.view.trials[0].record, now.view.trials[0].reward) == (0, None, None)


def test_what_is_left_is_estimated_by_task(running: Running, feed: CampaignFeed) -> None:
    running.finish(0)
    running.start(1)
    running.start(2)
    now = feed.poll()
    assert now.running == 2
    assert now.left.cost == pytest.approx(0.25 * 15)
    assert now.left.tokens == pytest.approx(100 * 15)
    assert now.left.seconds == pytest.approx(15 * 10 / 2, abs=2)
    assert now.tokens == 100 and now.cost == pytest.approx(0.25)


def test_one_unknown_cost_makes_all_of_it_unknown(running: Running, feed: CampaignFeed) -> None:
    running.finish(0)
    running.finish(1, cost=None)
    now = feed.poll()
    assert (now.cost, now.left.cost) == (None, None)
    assert now.left.tokens == pytest.approx(100 * 14)


def test_time_between_a_stop_and_a_resume_does_not_count(running: Running, feed: CampaignFeed) -> None:
    running.finish(0)
    running.finish(1)
    running.connection.execute(
        "UPDATE trial SET started = started - 5000, finished = finished - 5000 WHERE id = ?", (running.trials[0].id,)
    )
    assert feed.poll().seconds == pytest.approx(20, abs=1)


def test_it_has_died_when_its_process_is_gone(running: Running) -> None:
    running.start(0)
    lock_path(running.home, running.id).write_text("99999999\n", encoding="ascii")
    with closing(CampaignFeed(running.home, running.id)) as feed:
        now = feed.poll()
    assert (now.view.state, now.running, now.view.trials[0].state) == ("died", 0, "planned")


def test_a_baseline_that_is_not_main_can_not_be_promoted_from(running: Running, feed: CampaignFeed) -> None:
    assert feed.poll().current
    running.connection.execute("UPDATE generation SET commit_id = ?", ("f" * 40,))
    assert not feed.poll().current


def test_running_verdicts_are_not_computed_too_often(
    running: Running, feed: CampaignFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []

    def slow(view: object) -> tuple[()]:
        seen.append(time.monotonic())
        time.sleep(0.02)
        return ()

    monkeypatch.setattr(campaign_feed, "so_far", slow)
    for number in range(6):
        running.finish(number)
        feed.poll()
    assert len(seen) == 1


@pytest.mark.bad_input
def test_bad_input_watch_of_an_unknown_campaign(running: Running, tmp_path: Path) -> None:
    for home in (running.home, Home(tmp_path / "none", tmp_path)):
        with pytest.raises(UsageError) as raised:
            CampaignFeed(home, "c9999")
        print(raised.value.render())
