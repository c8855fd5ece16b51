"""`sia kill|pause|resume|send --to|campaign stop|campaign rerun` on a campaign that another process runs."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import pytest

from orchestrator import database, requests, rerun
from orchestrator.campaign_view import CampaignView, TrialRow, load
from orchestrator.cli import status
from orchestrator.errors import Failed, UsageError
from orchestrator.home import Home
from tests.orchestrator.campaigns import PROMPT, Workplace, children, gone
from tests.orchestrator.trial_kit import ONE_MODE
from tests.orchestrator.trial_kit import environments as environments

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(300)]
HANGS = """
[[rule]]
when = "not(single) and contains($system, 'Take time')"
answer = "<single timeout='900'>sleep 900</single>"
"""
FILE = """
seed = 3
candidates = ["slow"]
tasks = ["tasks/*"]
parallel = 2
engine = "test"
[limits]
iterations = 10
seconds = 300
"""


@pytest.fixture
def place(mode: str, tmp_path: Path, environments: Path) -> Workplace:
    """Two tasks, and a candidate whose trials hang."""
    made = Workplace(tmp_path, environments, tasks=2)
    policy = (made.root / "policy.toml").read_text()
    made.write("policy.toml", HANGS + policy)
    made.commit("policy")
    made.branch("slow", {PROMPT: "Take time."})
    made.write("campaign.toml", FILE)
    return made


def home_of(place: Workplace) -> Home:
    return Home(place.state, place.root)


def told(place: Workplace, kind: str, subject: str) -> str:
    """What `--dry-run` says, without the start of a process."""
    return requests.explain(home_of(place), kind, subject)


def until(condition: Callable[[], Any], seconds: float = 40) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return value


@contextmanager
def hanging(place: Workplace) -> Iterator[tuple[Popen[str], list[dict[str, Any]]]]:
    """A campaign in which both trials of the candidate hang, and these two rows of what runs."""
    process = place.start("campaign", "run", "campaign.toml")
    try:

        def both() -> list[dict[str, Any]]:
            tests = status.look(home_of(place))["tests"]
            return tests if [t["last_action"] for t in tests] == ["single"] * 2 else []

        yield process, until(both, 200)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        print(process.communicate(timeout=30)[0])


def view_of(place: Workplace) -> CampaignView:
    with closing(database.connect(place.state / "sia.db", read_only=True)) as connection:
        return load(connection, "c0001")


def trial_of(place: Workplace, trial: str) -> TrialRow:
    return next(each for each in view_of(place).trials if each.id == trial)


@ONE_MODE
def test_a_person_steps_in(place: Workplace) -> None:
    with hanging(place) as (process, rows):
        first, second = (row["id"] for row in rows)
        assert {row["arm"] for row in rows} == {"slow"} and all(row["limit_seconds"] == 300.0 for row in rows)
        _look(place, first)
        _pause_and_resume(place, first)
        _kill(place, first)
        said = place.sia("send", "hurry up", "--to", second, "--json")
        assert json.loads(said.stdout)["subject"] == second
        _stop(place, process, second)
    place.write("policy.toml", (place.root / "policy.toml").read_text().replace(HANGS, ""))
    place.sia("campaign", "resume")
    view = view_of(place)
    assert view.state == "done" and trial_of(place, second).outcome == "completed"
    assert (view.verdicts["slow"]["verdict"], view.verdicts["slow"]["excluded"]) == ("inconclusive", 1)
    _rerun(place, first, second)


def _look(place: Workplace, trial: str) -> None:
    """Whoever watches sees what was asked and answered last."""
    live = place.state / "run/live"
    live.mkdir()
    (live / f"{trial}.wanted").touch()
    until((live / f"{trial}.json").exists)
    shown = json.loads((live / f"{trial}.json").read_text())
    assert shown["state"] == "working" and shown["answer"].startswith("<single ") and "<context" in shown["context"]


def _pause_and_resume(place: Workplace, trial: str) -> None:
    assert "Every process" in place.sia("pause", trial, "--dry-run").stdout
    with pytest.raises(UsageError, match="not paused"):
        told(place, "resume", trial)
    assert place.sia("pause", trial).stderr == f"{trial}: paused\n"
    until(
        lambda: any(
            f"{trial}: task" in li and ", PAUSED for " in li for li in status.lines(status.look(home_of(place)))
        )
    )
    with pytest.raises(UsageError, match="is paused already"):
        told(place, "pause", trial)
    assert "goes on where it was" in told(place, "resume", trial)
    assert "it goes on" in place.sia("resume", trial).stderr


def _kill(place: Workplace, trial: str) -> None:
    assert "counts for neither arm" in told(place, "kill", trial)
    with pytest.raises(UsageError, match="could be"):
        told(place, "kill", "c0001t")
    assert "no instance 'nonsense' runs" in place.sia("kill", "nonsense", code=2).stderr
    assert place.sia("kill", trial).stderr == f"{trial}: killed\n"
    until(lambda: trial_of(place, trial).state == "done")
    row = trial_of(place, trial)
    assert row.record is not None
    until(lambda: not (place.state / f"run/live/{trial}.json").exists())
    assert (row.outcome, row.record["excluded"], row.reward) == ("invalid", "killed by a person", None)
    with pytest.raises(UsageError, match="has ended already"):
        told(place, "kill", trial)


def _stop(place: Workplace, process: Popen[str], running: str) -> None:
    """Once: it waits for what runs. Twice: that is killed, without a result."""
    assert "starts no more trials" in told(place, "stop_campaign", "last")
    with pytest.raises(UsageError, match="is being run"):
        rerun.explain(home_of(place), running)
    assert "no more trials start; 1 at work" in place.sia("campaign", "stop").stderr
    assert status.look(home_of(place))["campaigns"][0]["stopping"] and process.poll() is None
    assert "is stopping already" in place.sia("campaign", "stop", "--dry-run").stdout
    assert "are ended" in place.sia("campaign", "stop").stderr
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "sia campaign resume c0001" in output, output
    view = view_of(place)
    assert view.state == "interrupted" and "stopped by " in (view.error or "")
    assert trial_of(place, running).state == "planned"
    with pytest.raises(UsageError, match="nobody runs campaign"):
        told(place, "stop_campaign", "c1")
    promote = place.sia("promote", "slow", "--dry-run", code=2).stderr
    assert "no verdict on 'slow'" in promote and "sia campaign resume c0001" in promote


def _rerun(place: Workplace, killed: str, valid: str) -> None:
    assert "has a valid result" in place.sia("campaign", "rerun", valid, code=2).stderr
    assert "as attempt 1" in place.sia("campaign", "rerun", killed, "--dry-run").stdout
    assert view_of(place).state == "done", "nothing was changed so far"
    done = place.sia("campaign", "rerun", killed)
    view = view_of(place)
    assert view.state == "done" and trial_of(place, killed).outcome == "completed"
    verdict = view.verdicts["slow"]
    assert verdict["excluded"] == 0
    assert any("run again on a person's request" in reason and killed in reason for reason in verdict["reasons"])
    assert f"run again from their start: {valid} (cut off: the campaign was stopped)" in verdict["reasons"]
    cut = (valid, 1, rerun.CUT_OFF, "the campaign was stopped")
    again = (killed, 1, "invalid", "killed by a person")
    assert [(a["trial"], a["number"], a["outcome"], a["detail"]) for a in view.set_aside] == [cut, again]
    assert (place.state / "campaigns/c0001/trials" / f"{killed}.1" / "stdin.txt").exists()
    assert "run again on a person's request" in done.stdout


def test_ctrl_c_while_one_is_paused_leaves_nothing(place: Workplace) -> None:
    with hanging(place) as (process, rows):
        with closing(database.connect(place.state / "sia.db")) as connection:
            for number in [requests.ask(connection, "pause", row["id"]) for row in rows]:
                assert requests.wait(connection, number, 60) == "paused"
        family = children(process.pid)
        os.killpg(process.pid, signal.SIGINT)
        output, _ = process.communicate(timeout=30)
        assert process.returncode == 130, output
    assert gone(family, place) == []
    assert view_of(place).state == "interrupted"
    assert not list((place.state / "run").iterdir())


@ONE_MODE
def test_requests_that_nobody_takes(place: Workplace) -> None:
    """They are withdrawn, and what was asked before an owner began does not meet it."""
    with closing(database.connect(place.state / "sia.db")) as connection:
        number = requests.ask(connection, "kill", "c0001t1")
        assert requests.pending(connection, {"c0001": 0.0}) == []
        assert requests.wait(connection, number, 0.0) is None
        assert requests.pending(connection, {"c0001t1": 0.0}) == []
        early = requests.ask(connection, "stop_campaign", "c0001")
        assert requests.pending(connection, {"c0001": time.time() + 1}) == []
        with pytest.raises(Failed, match="was not running"):
            requests.wait(connection, early, 0.0)
        twice = requests.ask(connection, "pause", "c0001t1")
        assert [r.id for r in requests.pending(connection, {"c0001t1": 0.0})] == [twice]
        assert requests.pending(connection, {"c0001t1": 0.0}) == []
        requests.finish(connection, twice, "paused")
        assert requests.wait(connection, twice, 0.0) == "paused"
        with pytest.raises(UsageError):
            requests.ask(connection, "message", "c0001t1", " \n")
