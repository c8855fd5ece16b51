"""`sia supervise` with real sandboxes, the standard agent and a scripted engine: the life of a main instance."""

from __future__ import annotations

import itertools
import json
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from orchestrator import states
from orchestrator.generations import Ledger
from tests.orchestrator import trial_kit
from tests.orchestrator.main_kit import BRITTLE, POLICY, SIA, MainKit, leftovers

environments = trial_kit.environments
pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def kit(tmp_path: Path, environments: Path) -> MainKit:
    return MainKit(tmp_path, environments)


def test_start_talk_stop(kit: MainKit, mode: str) -> None:
    assert kit.sia("send", "m1").returncode == 0
    with kit.supervise() as process:
        kit.until("main to work", lambda: kit.works(4))
        status = json.loads(kit.sia("status", "--json").stdout)
        assert status["supervisor"]["pid"] == process.pid
        assert status["main"]["label"] == "generation 1"
        kit.sia("send", "m2")
        kit.until("both messages", lambda: kit.heard() == ["m1", "m2"])
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert leftovers(kit.home) == []
    status = json.loads(kit.sia("status", "--json").stdout)
    assert (status["main"], status["orphans"], status["supervisor"]) == (None, [], None)


def test_a_stop_of_the_agent_stops_the_supervisor(kit: MainKit) -> None:
    kit.sia("send", "please stop")
    with kit.supervise() as process:
        assert process.wait(30) == 0
    assert kit.events("stop") == ["main stopped by itself"]


def test_hangup_means_start_me_again(kit: MainKit) -> None:
    with kit.supervise() as process:
        kit.until("main to work", kit.works)
        process.send_signal(signal.SIGHUP)
        assert process.wait(20) == 42


@pytest.mark.bad_input
def test_bad_input_second_supervise(kit: MainKit) -> None:
    with kit.supervise() as process:
        kit.until("main to work", kit.works)
        second = kit.sia("supervise")
        print(second.stderr)
        assert second.returncode == 1
        assert f"process id {process.pid}" in second.stderr
        assert process.poll() is None


@pytest.mark.bad_input
def test_bad_input_engine_command_that_does_not_exist(kit: MainKit) -> None:
    text = (kit.repo / "sia.toml").read_text().replace('["python"', '["/no/such/engine"')
    kit.write("sia.toml", text)
    done = kit.sia("supervise")
    print(done.stderr)
    assert done.returncode == 78
    assert "/no/such/engine" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.bad_input
def test_bad_input_no_engine_for_main(kit: MainKit) -> None:
    kit.write(
        "sia.toml", (kit.repo / "sia.toml").read_text().replace('[main]\nengine = "test"\nsteady_sec = 0.2\n', "")
    )
    done = kit.sia("supervise")
    print(done.stderr)
    assert done.returncode == 78
    assert "[main] engine is not set" in done.stderr
    done = kit.sia("run", "--engine", "nobody")
    print(done.stderr)
    assert done.returncode == 78


def test_crashes_are_counted_and_messages_survive_them(kit: MainKit) -> None:
    with kit.supervise():
        sent = []
        for number in range(4):
            kit.until("main to work", kit.works)
            sent.append(f"m{number}")
            kit.sia("send", sent[-1])
            if number % 2:
                kit.until("it to be read", lambda: kit.heard() == sent)
            starts = len(kit.events("launch"))
            kit.signal_main(signal.SIGKILL)
            kit.until("a new start", lambda: len(kit.events("launch")) > starts)  # noqa: B023
            status = kit.sia("status").stdout
            assert "crashes in a row" in status or kit.standing().crashes == 0
        kit.until("all messages", lambda: kit.heard() == sent)
        time.sleep(0.5)
        assert kit.heard() == sent  # none twice
        kit.until("the counter to be reset", lambda: kit.standing().crashes == 0)
    assert "crash 1 in a row; started again in 0.5 s" in kit.events("restart")


def test_a_killed_supervisor_loses_no_message(kit: MainKit) -> None:
    sent = []
    for number in range(4):
        with kit.supervise() as process:
            kit.until("main to work", kit.works)
            sent.append(f"m{number}")
            kit.sia("send", sent[-1])
            time.sleep(0.07 * number)
            process.kill()
            process.wait()
        kit.until("everything to be gone", lambda: leftovers(kit.home) == [], 5)
    with kit.supervise():
        kit.until("all messages", lambda: kit.heard() == sent)
        time.sleep(0.5)
        assert kit.heard() == sent


def test_code_42_without_a_request_is_a_crash(kit: MainKit) -> None:
    main = (kit.repo / "instance/__main__.py").read_text()
    kit.write(
        "instance/__main__.py", "import sys; sys.exit(42)\n" + main.replace("from __future__ import annotations\n", "")
    )
    kit.git("commit", "-qam", "exits 42")
    with kit.supervise():
        kit.until("two crashes", lambda: len(kit.events("crash")) >= 2)
    assert set(kit.events("crash")) == {"exit code 42 without a request"}


def test_promotion_keeps_state_and_messages(kit: MainKit) -> None:
    kit.branch("better")
    kit.judge("better")
    with kit.supervise():
        kit.until("main to work", kit.works)
        kit.sia("send", "m1")
        kit.until("the message", lambda: kit.heard() == ["m1"])
        writer = subprocess.Popen(
            ["sh", "-c", 'i=2; while [ $i -lt 12 ]; do "$@" m$i; i=$((i+1)); done', "sh", *SIA, "send"],
            cwd=kit.repo,
            env=kit.env(),
            stderr=subprocess.DEVNULL,
        )
        done = kit.sia("promote", "better", "--wait", "--json")
        assert done.returncode == 0, done.stderr + kit.log.read_text()
        assert writer.wait(60) == 0
        assert json.loads(done.stdout)["outcome"] == "healthy"
        expected = [f"m{number}" for number in range(1, 12)]
        kit.until("all messages", lambda: kit.heard() == expected)
        standing = kit.standing()
        assert (standing.state, standing.generation.number, standing.last_good.number) == (states.STABLE, 2, 2)
        assert kit.head() == standing.generation.commit
        assert (kit.home.generations / standing.generation.commit / "procedures/better.md").exists()
        with closing(sqlite3.connect(kit.home.exchanges / "exchanges.db")) as store:
            synced = store.execute("SELECT count FROM synced").fetchone()[0]
        assert synced >= 2  # the seal of the old one's journal, and what HEALTHY rests on
    assert "* " not in kit.git("status", "--porcelain")
    assert kit.git("rev-parse", "main").strip() != standing.generation.commit


def test_a_bad_promotion_is_rolled_back_as_a_failure(kit: MainKit) -> None:
    kit.branch("brittle", top=BRITTLE)
    kit.judge("brittle", "inconclusive")
    with kit.supervise():
        kit.until("main to work", lambda: kit.works(4))
        kit.sia("send", "m1")
        kit.until("the message", lambda: kit.heard() == ["m1"])
        refused = kit.sia("promote", "brittle")
        assert refused.returncode == 78 and "not better" in refused.stderr
        done = kit.sia("promote", "brittle", "--accept", "I want to see it", "--wait")
        assert done.returncode == 1, done.stderr
        assert "rolled back" in done.stdout and "exit code 3" in done.stdout
        assert all(text.startswith("brittle: I can't work here (all of it: ") for text in kit.events("last words"))
        assert len(kit.events("last words")) == 3
        kit.until("the old one", lambda: kit.works(2) and not kit.standing().probation)
        standing = kit.standing()
        assert (standing.state, standing.generation.number) == (states.STABLE, 1)
        assert kit.heard() == ["m1"]
        kit.sia("send", "m2")
        kit.until("the second message", lambda: kit.heard() == ["m1", "m2"])
        again = kit.sia("promote", "brittle")
        assert again.returncode == 78
        assert kit.head() == standing.generation.commit
        with kit.database() as connection:
            assert Ledger(connection).promotions()[0].launches == 3
            boots = connection.execute("SELECT started, finished FROM launch WHERE promotion = 1 ORDER BY started")
            times = [(row["started"], row["finished"]) for row in boots]
    pauses = [begun - ended for (_, ended), (begun, _) in itertools.pairwise(times)]
    assert pauses[0] >= 0.05 and pauses[1] >= 0.1
    told = [text for text in kit.events("trial") if "again" in text]
    assert told == ["brittle is tried again in 0.05 s", "brittle is tried again in 0.1 s"]


def test_policy_auto_promotes_by_itself(tmp_path: Path, environments: Path) -> None:
    kit = MainKit(tmp_path, environments, policy="auto")
    kit.branch("better")
    with kit.supervise():
        kit.until("main to work", kit.works)
        kit.judge("better")
        kit.until("the promotion", lambda: kit.standing().generation.number == 2 and kit.works())
        with kit.database() as connection:
            assert Ledger(connection).promotions()[0].approved == "policy"


def test_a_person_goes_back_with_and_without_state(kit: MainKit) -> None:
    kit.branch("better")
    kit.judge("better")
    with kit.supervise():
        kit.until("main to work", kit.works)
        kit.sia("send", "m1")
        kit.until("the message", lambda: kit.heard() == ["m1"])
        assert kit.sia("promote", "better", "--wait").returncode == 0
        kit.sia("send", "m2")
        kit.until("the message", lambda: kit.heard() == ["m1", "m2"])
        done = kit.sia("rollback", "--with-state", "--wait")
        assert done.returncode == 0, done.stderr
        assert kit.standing().generation.number == 1
        kit.until("the data of then", lambda: kit.heard() == ["m1"])
        kit.sia("send", "m3")
        kit.until("the message", lambda: kit.heard() == ["m1", "m3"])
    refused = kit.sia("rollback", "2")
    assert refused.returncode == 1 and "generation 2 is bad" in refused.stderr


def test_the_old_one_dies_too(kit: MainKit) -> None:
    """After a rollback main dies again: SAFE. No agent runs, status answers, a person decides."""
    kit.branch("brittle", top=BRITTLE)
    kit.judge("brittle")
    with kit.supervise() as process:
        kit.until("main to work", lambda: kit.works(4))
        assert kit.sia("promote", "brittle").returncode == 0
        kit.until("the rollback", lambda: kit.standing().probation)
        kit.until("the old one", lambda: kit.launch() is not None)
        _kill_main_when_it_runs(kit)
        kit.until("the safe state", lambda: kit.standing().state == states.SAFE)
        assert process.poll() is None
        assert "SAFE: no agent runs" in kit.sia("status").stdout
        assert kit.launch() is None
        assert kit.sia("rollback").returncode == 0
        kit.until("main to work again", kit.works)


def _kill_main_when_it_runs(kit: MainKit) -> None:
    def killed() -> bool:
        try:
            kit.signal_main(signal.SIGKILL)
        except AssertionError:
            return False
        return True

    kit.until("a process to kill", killed, 10)


def test_an_engine_that_is_out_holds_a_trial(kit: MainKit) -> None:
    """The engine fails while the new generation boots: HOLD, the try is given back, and it goes on when it answers."""
    kit.branch("better")
    kit.judge("better")
    with kit.supervise():
        kit.until("main to work", kit.works)
        kit.write("policy.toml", "[faults]\ncrash = 1.0\n" + POLICY.replace("[faults]\n", ""))
        kit.restart_engine()
        assert kit.sia("promote", "better").returncode == 0
        kit.until("the hold", lambda: kit.standing().state == states.HOLD)
        kit.write("policy.toml", POLICY)
        kit.until("the promotion", lambda: kit.standing().last_good.number == 2 and kit.works())
        with kit.database() as connection:
            assert Ledger(connection).promotions()[0].outcome == "healthy"


def test_run_in_the_foreground(kit: MainKit) -> None:
    done = subprocess.run(
        [*SIA, "run", "--engine", "test"],
        cwd=kit.repo,
        env=kit.env(),
        input=b"m1\nplease stop\n",
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert kit.heard() == ["m1"]
