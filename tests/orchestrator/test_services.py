"""What an instance is told by its supervisor."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator import database
from orchestrator.errors import Failed, Refused, UsageError
from orchestrator.home import open_home
from orchestrator.services import ATTEMPTS_AN_HOUR, PROPOSALS_AN_HOUR, HomeServices


@pytest.fixture
def services(tmp_path: Path) -> HomeServices:
    (tmp_path / ".git").mkdir()
    home = open_home(tmp_path)
    with closing(database.connect(home.database)) as connection:
        for number, (name, split) in enumerate((("c0001", "train"), ("c0002", "sealed"))):
            connection.execute(
                "INSERT INTO campaign (id, created, file, spec, baseline, state) VALUES (?, ?, '', '{}', 'b', 'done')",
                (name, number),
            )
            connection.execute("INSERT INTO campaign_task VALUES (?, 0, 'sums', '/t', 'k', ?)", (name, split))
            for place, (arm, reward) in enumerate((("baseline", 0.0), ("better", 1.0), ("better", 0.5))):
                connection.execute(
                    "INSERT INTO trial (id, campaign, arm, task, repeat, position, state, reward)"
                    " VALUES (?, ?, ?, 'sums', ?, ?, 'done', ?)",
                    (f"{name}-{place}", name, arm, place, place, reward),
                )
            connection.execute(
                "INSERT INTO arm (campaign, name, role, proposed) VALUES (?, 'better', 'candidate', 'p')", (name,)
            )
            connection.execute("INSERT INTO verdict VALUES (?, 'better', 'inconclusive', '{}')", (name,))
    return HomeServices(home, ("instance",))


def test_results(services: HomeServices) -> None:
    assert services.results("t", "c0001").splitlines() == [
        "Campaign c0001 (done). Mean reward of each task:",
        "baseline: mean 0.000",
        "  sums: 0.000",
        "better: mean 0.750, verdict: inconclusive",
        "  sums: 0.750",
    ]


def test_sealed_results_never_appear(services: HomeServices) -> None:
    assert services.results("t", "") == "Campaign c0002 (done): its results are sealed."
    assert services.results("t", "%") == "There is no such campaign."


def test_everybody_gets_the_same_answer(services: HomeServices) -> None:
    assert services.status("main") == services.status("c0001-better-1")
    assert services.status("main").endswith("c0002: done\nc0001: done")


def test_no_trials_of_its_own_yet(services: HomeServices) -> None:
    with pytest.raises(Failed, match="not to be had in this version"):
        services.trial("main", "b", "t")


def test_overlong_proposal(services: HomeServices) -> None:
    with pytest.raises(UsageError, match="too long"):
        services.propose("main", "b" * 101, "", b"x")


def test_empty_home(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    services = HomeServices(open_home(tmp_path), ())
    assert services.results("t", "") == "No campaign has ended yet."
    assert services.status("t") == "The supervisor runs. No campaign has ended yet."


@pytest.mark.parametrize("state", ["running", "interrupted", "failed"])
def test_a_campaign_that_runs_is_not_spoken_of(services: HomeServices, state: str) -> None:
    """Else a trial could read what other trials of its campaign gave, and tell that it is one."""
    before = services.status("main"), services.results("main", "")
    with closing(database.connect(services.home.database)) as connection:
        connection.execute(
            "INSERT INTO campaign (id, created, file, spec, baseline, state) VALUES ('c0003', 9, '', '{}', 'b', ?)",
            (state,),
        )
    assert (services.status("c0003-1"), services.results("c0003-1", "")) == before
    assert services.results("c0003-1", "c0003") == "There is no such campaign."


def test_one_instance_can_not_fill_the_disk_with_proposals(services: HomeServices) -> None:
    with closing(database.connect(services.home.database)) as connection:
        for number in range(PROPOSALS_AN_HOUR):
            values = (number, f"c{number}", "b", f"t{number}", "x", "y", "t1", 0, time.time())
            connection.execute("INSERT INTO proposal VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    with pytest.raises(UsageError, match="the most is 10"):
        services.propose("t1", "x", "y", b"x")
    with pytest.raises(Refused, match="not a usable git bundle"):
        services.propose("t2", "x", "y", b"x")


def test_refused_proposals_are_counted_too(services: HomeServices) -> None:
    for _ in range(ATTEMPTS_AN_HOUR):
        with pytest.raises(Refused, match="not a usable git bundle"):
            services.propose("t1", "x", "y", b"x")
    with pytest.raises(UsageError, match="30 proposals were tried within the last hour"):
        services.propose("t1", "x", "y", b"x")
    with pytest.raises(Refused, match="not a usable git bundle"):
        services.propose("t2", "x", "y", b"x")
