"""What an instance is told by its supervisor."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from orchestrator import database
from orchestrator.errors import Failed, UsageError
from orchestrator.home import open_home
from orchestrator.services import HomeServices


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
    with pytest.raises(Failed, match="the quota is 0"):
        services.trial("main", "b", "t")


def test_overlong_proposal(services: HomeServices) -> None:
    with pytest.raises(UsageError, match="too long"):
        services.propose("main", "b" * 101, "", b"x")


def test_empty_home(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    services = HomeServices(open_home(tmp_path), ())
    assert services.results("t", "") == "There is no campaign yet."
    assert services.status("t") == "The supervisor runs. There is no campaign yet."
