"""The story that the dashboard is for, in a real terminal against real work.

A campaign runs, one trial hangs, the person finds it, looks at its last iteration, kills it, the campaign ends, they
promote, then roll back. Nothing is left of it afterwards.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator import database
from orchestrator.generations import Ledger, Standing
from orchestrator.home import Home
from tests.orchestrator.main_kit import leftovers
from tests.orchestrator.trial_kit import environments
from tests.watch.story_kit import Stage, Terminal, no_tmux, terminal

__all__ = ["environments"]
pytestmark = [
    pytest.mark.sandbox,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(no_tmux()), reason=no_tmux()),
]
SOON = 200.0  # seconds, on a machine that is busy with other tests


@pytest.fixture
def stage(mode: str, tmp_path: Path, environments: Path) -> Stage:
    """The repository of the story."""
    return Stage(tmp_path, environments)


@pytest.fixture
def person(stage: Stage) -> Iterator[Terminal]:
    """A person at a terminal in that repository."""
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "SIA_HOME")}
    with terminal(stage.root, {**environment, "PYTHONPATH": stage.environment()["PYTHONPATH"]}) as opened:
        yield opened


def standing(stage: Stage) -> Standing:
    with closing(database.connect(stage.state / "sia.db", read_only=True)) as connection:
        return Ledger(connection).standing()


def show(title: str, screen: str) -> None:
    """For a person who reads the test's output."""
    print(f"--- {title}\n{screen}")


def test_one_trial_hangs_and_a_person_steps_in(stage: Stage, person: Terminal) -> None:
    person.start("watch", "sh", "-c", " ".join(stage.command("watch")) + "; echo left with $?; read x")
    show("at the beginning", person.wait("watch", "1 instances", "Nothing runs", "q quit", seconds=SOON))
    person.start("main", *stage.command("supervise"), columns=120)
    person.start("campaign", *stage.command("campaign", "run", "campaign.toml"), columns=120)
    show("the campaign runs", person.wait("watch", "follower", "running", "c0001", seconds=SOON))

    # One of them hangs. The others end; it stays, and is called quiet.
    person.wait("campaign", "20/21 trials", seconds=SOON)
    screen = person.wait("watch", "quiet", "task3", seconds=SOON)
    show("one trial hangs", screen)
    assert "20/21" in screen
    person.type("watch", "/task3")
    person.keys("watch", "Enter")
    person.wait("watch", "/task3 1 of")
    person.keys("watch", "Enter")
    show("its iterations", person.wait("watch", "iteration 2 of 2", "tail -f", seconds=SOON))
    person.keys("watch", "Tab", "Tab")
    show("the last answer", person.wait("watch", '<single timeout="3000">tail -f start.txt</single>', seconds=SOON))
    person.type("watch", "h")
    show("the answer before", person.wait("watch", "iteration 1 of 2", "<read_stdin/>", seconds=SOON))
    person.type("watch", "L")
    person.wait("watch", "tail -f start.txt", seconds=SOON)

    person.type("watch", "K")
    show("asked before it is killed", person.wait("watch", "Kill c0001t", "killed at once", "enter: do it"))
    person.type("watch", "y")
    show("killed", person.wait("watch", ": killed", "invalid: killed by a person", seconds=SOON))
    assert person.ended("campaign", SOON) == 0
    show("the campaign's own last words", person.screen("campaign"))

    person.type("watch", "2")
    show("the campaign has ended", person.wait("watch", "done", "better", seconds=SOON))
    person.type("watch", "P")
    show("asked before it is promoted", person.wait("watch", "Promote better", "enter: do it", seconds=SOON))
    person.type("watch", "y")
    person.type("watch", "4")
    promoted = lambda screen: standing(stage).generation.candidate == "better" and "better" in screen  # noqa: E731
    person.until("watch", promoted, SOON, "the promotion")
    healthy = lambda _: standing(stage).state == "STABLE"  # noqa: E731
    show("promoted", person.until("watch", healthy, SOON, "the new generation to hold up"))

    person.type("watch", "R")
    show(
        "asked before it is rolled back",
        person.wait("watch", "Roll back", "generation 1", "enter: do it", seconds=SOON),
    )
    person.type("watch", "y")
    back = lambda _: (now := standing(stage)).state == "STABLE" and now.generation.number == 1  # noqa: E731
    person.until("watch", back, SOON, "the rollback")
    show("rolled back", person.wait("watch", "first", "bad", seconds=SOON))

    person.type("watch", "q")
    person.wait("watch", "left with 0")
    assert person.flags("watch") == "0 1"  # the ordinary screen again, with a cursor
    person.close()
    assert leftovers(Home(stage.state, stage.root)) == []
