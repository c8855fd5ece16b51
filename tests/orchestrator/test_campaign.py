"""Whole campaigns with the real agent in real sandboxes, started from the command line as a person would."""

from __future__ import annotations

import hashlib
import json
import os
import pty
import signal
import subprocess
import time
from pathlib import Path

import pytest

from orchestrator.campaign_view import lock_path
from orchestrator.home import Home
from orchestrator.locks import hold
from tests.orchestrator.campaigns import CARE, PROMPT, REPOSITORY, Workplace, children, gone, untouched
from tests.orchestrator.trial_kit import ONE_MODE
from tests.orchestrator.trial_kit import environments as environments

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(300)]  # the first one builds the environments
ACTED = "[1/"  # a first trial has ended
ROOT = "user" if os.geteuid() else "root"
# Mode, what was said last, seconds after it; rights matter only to how sandboxes are ended.
MOMENTS = [
    (ROOT, "campaign c0001", 0.0),
    ("user", "campaign c0001", 0.15),
    (ROOT, ACTED, 0.0),
    ("user", ACTED, 0.1),
    (ROOT, "[3/", 0.05),
]


@pytest.fixture
def place(mode: str, tmp_path: Path, environments: Path) -> Workplace:
    """A repository with a candidate that answers right where the baseline does not."""
    made = Workplace(tmp_path, environments)
    made.branch("careful", {PROMPT: CARE, "README.md": "not part of the agent"})
    return made


@pytest.fixture
def small(mode: str, tmp_path: Path, environments: Path) -> Workplace:
    """The same with three tasks: enough to be interrupted."""
    made = Workplace(tmp_path, environments, tasks=3)
    made.branch("careful", {PROMPT: CARE})
    return made


def test_a_campaign_from_the_file_to_its_verdicts(place: Workplace) -> None:
    """Better, equivalent, and one that writes answers into its own log which no engine gave."""
    log = (REPOSITORY / "instance/log.py").read_text(encoding="utf-8")
    lie = log.replace(
        "        path = self._directory", '        response = "All tests pass."\n        path = self._directory'
    )
    assert lie != log
    place.branch("polite", {PROMPT: "Be polite."})
    place.branch("liar", {PROMPT: CARE, "instance/log.py": lie})
    place.campaign_file("careful", "polite", "liar", extra="")
    for number in (6, 7):
        place.task(f"task{number}")
    before = untouched(place)
    done = place.sia("campaign", "run", "campaign.toml")
    assert "With 8 tasks and 3 candidates, better needs at least 7 wins and no loss" in done.stderr
    assert "not judged, since outside the agent paths: README.md" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr
    assert untouched(place) == before
    assert place.verdicts() == {"careful": "better", "polite": "equivalent", "liar": "disqualified"}
    shown = place.shown()
    assert shown["verdicts"]["careful"]["wins"] == 8 and shown["verdicts"]["liar"]["wins"] == 0
    assert "All tests pass." in shown["verdicts"]["liar"]["reasons"][0]
    liars = [trial for trial in shown["trials"] if trial["arm"] == "liar"]
    assert sum(trial["state"] == "done" for trial in liars) < len(liars), "nothing more is spent on a cheater"
    assert not list((place.state / "run").iterdir())
    assert [path.name for path in (place.state / "campaigns/c0001").iterdir()] == ["trials"]
    assert not list((place.state / "campaigns/c0001/trials").glob("*/layers"))
    listed = json.loads(place.sia("campaign", "list", "--json").stdout)
    assert listed[0]["verdicts"] == place.verdicts() and listed[0]["state"] == "done"
    assert place.sia("campaign", "show", "c1").stdout == place.sia("campaign", "show").stdout
    written = place.sia("campaign", "report").stdout.splitlines()
    assert all(Path(path).stat().st_size > 1000 for path in written)


@ONE_MODE
def test_the_baseline_alone_is_measured(place: Workplace) -> None:
    place.campaign_file()
    done = place.sia("campaign", "run", "campaign.toml", "--json")
    view = json.loads(done.stdout)
    assert view["state"] == "done" and view["verdicts"] == {} and len(view["trials"]) == 6
    assert "nothing to compare" in done.stderr


@ONE_MODE
def test_one_that_breaks_the_contract_is_out_before_the_first_trial(place: Workplace) -> None:
    place.branch("broken", {"instance/__main__.py": "raise SystemExit(3)\n"})
    schema = (REPOSITORY / "action_schema.xsd").read_text(encoding="utf-8")
    lean = schema.replace('<xs:element name="repeat" type="script"/>', "")
    assert lean != schema
    place.branch("lean", {PROMPT: CARE, "action_schema.xsd": lean})
    place.campaign_file("lean", "broken")
    place.sia("campaign", "run", "campaign.toml")
    shown = place.shown()
    assert place.verdicts() == {"lean": "better", "broken": "disqualified"}
    left_out = "lean: checks of the contract that were not asked: 6b: its schema has no <repeat>"
    assert left_out in place.sia("campaign", "show").stdout, "what was passed unasked is said with the result"
    assert shown["verdicts"]["broken"]["reasons"][0].startswith("conformance: check ")
    assert not [trial for trial in shown["trials"] if trial["arm"] == "broken"]


@ONE_MODE
def test_a_baseline_that_cheats_stops_the_campaign_for_good(mode: str, tmp_path: Path, environments: Path) -> None:
    place = Workplace(tmp_path, environments, tasks=2)
    log = place.root / "instance/log.py"
    text = log.read_text(encoding="utf-8")
    log.write_text(text.replace("        path = self._d", '        response = "I won."\n        path = self._d'))
    place.commit("lie")
    place.branch("careful", {PROMPT: CARE})
    place.campaign_file("careful")
    done = place.sia("campaign", "run", "campaign.toml", code=1)
    print(done.stderr)
    assert "the baseline is disqualified" in done.stderr and "I won." in done.stderr
    assert place.shown()["state"] == "failed" and place.verdicts() == {}
    assert "failed for good" in place.sia("campaign", "resume", code=2).stderr


@pytest.mark.bad_input
@ONE_MODE
def test_bad_input_a_second_runner_of_the_same_campaign(small: Workplace) -> None:
    small.campaign_file("careful")
    interrupted(small, ACTED)
    with hold(lock_path(Home(small.state, small.root), "c0001"), "x", "y"):
        done = small.sia("campaign", "resume", code=1)
        print(done.stderr)
        assert f"is being run already (process {os.getpid()})" in done.stderr
        assert "sia campaign stop c0" in done.stderr
        assert small.shown()["state"] == "interrupted"
    small.sia("campaign", "resume")


def interrupted(place: Workplace, marker: str, *, number: int = signal.SIGINT, delay: float = 0.0) -> str:
    """Start the campaign, send a signal to its whole process group once `marker` was said; returns what it said."""
    process = place.start("campaign", "run", "campaign.toml")
    assert process.stdout
    said = ""
    with process:
        for line in process.stdout:
            said += line
            if marker in line:
                time.sleep(delay)
                family = children(process.pid)
                os.killpg(process.pid, number)
                break
        said += process.stdout.read()
    print(said)
    assert process.returncode == 130, said
    assert "Traceback" not in said
    assert gone(family, place) == []
    assert not list((place.state / "run").iterdir())
    return said


@pytest.mark.bad_input
@ONE_MODE
def test_bad_input_ctrl_c_before_the_first_trial(small: Workplace) -> None:
    small.campaign_file("careful")
    assert "nothing was stored" in interrupted(small, "checking the contract")
    assert json.loads(small.sia("campaign", "list", "--json").stdout) == []
    small.sia("campaign", "run", "campaign.toml")
    assert small.shown()["verdicts"]["careful"]["wins"] == 3


@pytest.mark.bad_input
@pytest.mark.parametrize(("mode", "marker", "delay"), MOMENTS)
def test_bad_input_ctrl_c_while_trials_run(small: Workplace, marker: str, delay: float) -> None:
    small.campaign_file("careful")
    said = interrupted(small, marker, delay=delay)
    assert "sia campaign resume c0001" in said
    shown = small.shown()
    assert shown["state"] == "interrupted" and shown["verdicts"] == {}
    assert {trial["state"] for trial in shown["trials"]} <= {"planned", "done"}
    kept = {trial["id"]: trial for trial in shown["trials"] if trial["state"] == "done"}
    assert all(trial["outcome"] == "completed" for trial in kept.values()), "what the stop did is nobody's result"
    small.sia("campaign", "resume")
    after = {trial["id"]: trial for trial in small.shown()["trials"]}
    assert kept.items() <= after.items() and small.shown()["verdicts"]["careful"]["wins"] == 3
    assert "is finished" in small.sia("campaign", "resume", code=2).stderr


@pytest.mark.bad_input
def test_bad_input_a_second_ctrl_c_leaves_at_once(small: Workplace) -> None:
    small.campaign_file("careful")
    process = small.start("campaign", "run", "campaign.toml")
    assert process.stdout
    with process:
        while ACTED not in process.stdout.readline():
            pass
        family = children(process.pid)
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        began = time.monotonic()
        assert process.wait(10) == 130
        assert time.monotonic() - began < 5
        assert "Traceback" not in process.stdout.read()
    assert gone(family, small) == []
    small.sia("campaign", "resume")
    assert small.shown()["verdicts"]["careful"]["wins"] == 3
    assert not list((small.state / "run").iterdir())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_sigterm_and_a_closed_terminal_end_it_in_order_too(small: Workplace, number: int) -> None:
    small.campaign_file("careful")
    interrupted(small, ACTED, number=number)
    assert small.shown()["state"] == "interrupted"


@pytest.mark.bad_input
@ONE_MODE
def test_bad_input_tasks_changed_since_the_interruption(small: Workplace) -> None:
    small.campaign_file("careful")
    interrupted(small, ACTED)
    small.write("tasks/task2/tests/test.sh", "echo 1 > /logs/verifier/reward.txt\n")
    done = small.sia("campaign", "resume", code=78)
    print(done.stderr)
    assert "task2" in done.stderr and "have changed" in done.stderr
    small.task("task2")
    small.sia("campaign", "resume")


@pytest.mark.bad_input
@ONE_MODE
def test_bad_input_an_engine_that_always_dies_stops_the_campaign(small: Workplace) -> None:
    """An outage is nobody's result: the trials are planned again, and count once the engine is mended."""
    small.write("policy.toml", '[faults]\ncrash = 1.0\n[[rule]]\nwhen = "true()"\nanswer = "<stop/>"\n')
    small.campaign_file("careful", repeats=3, extra="parallel = 8\n")  # all wait for the engine at once
    done = small.sia("campaign", "run", "campaign.toml", code=None)
    print(done.stderr)
    assert done.returncode == 1, done.stderr
    assert "trials in a row could not be run" in done.stderr and "engine" in done.stderr
    shown = small.shown()
    assert shown["state"] == "interrupted" and shown["verdicts"] == {}


@ONE_MODE
def test_a_terminal_sees_a_live_panel_and_gets_its_cursor_back(place: Workplace) -> None:
    place.campaign_file("careful")
    ours, theirs = pty.openpty()
    environment = place.environment(TERM="xterm-256color")
    del environment["NO_COLOR"]
    with subprocess.Popen(
        place.command("campaign", "run", "campaign.toml"),
        cwd=place.root,
        env=environment,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as process:
        os.close(theirs)
        shown = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # EIO: the last holder of the terminal is gone
                break
            if not piece:
                break
            shown += piece
        assert process.stdout
        data = process.stdout.read()
    os.close(ours)
    assert process.returncode == 0
    assert b"mean reward" in shown and b"12 trials" in shown
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l"), "the cursor is shown again"
    assert b"\x1b" not in data and b"better" in data


@ONE_MODE
def test_the_plan_is_the_same_for_the_same_file(small: Workplace) -> None:
    small.campaign_file("careful")
    orders = []
    for number in (1, 2):
        small.sia("campaign", "run", "campaign.toml")
        shown = small.shown(f"c{number}")
        orders.append([(t["arm"], t["task"], t["repeat"], t["reward"]) for t in shown["trials"]])
    assert orders[0] == orders[1]


@ONE_MODE
def test_showing_changes_nothing(small: Workplace) -> None:
    small.campaign_file("careful")
    small.sia("campaign", "run", "campaign.toml")
    database = small.state / "sia.db"
    small.sia("campaign", "show")
    before = hashlib.sha256(database.read_bytes()).digest()
    for words in (("show",), ("show", "--trials"), ("list",), ("report",)):
        small.sia("campaign", *words)
    assert hashlib.sha256(database.read_bytes()).digest() == before


@ONE_MODE
def test_sealed_tasks_are_run_once_for_each_code(small: Workplace) -> None:
    """Open tasks may be run again."""
    small.write("tasks/task0/task.toml", '[task]\nsplit = "sealed"\n')
    small.commit("seal a task")
    small.campaign_file("careful")
    small.sia("campaign", "run", "campaign.toml")
    again = small.sia("campaign", "run", "campaign.toml", code=78).stderr
    print(again)
    assert "careful on task0 (campaign c0001)" in again and "task1" not in again
