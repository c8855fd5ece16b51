"""What the supervisor does when something does not go on: a main that does not exit, a ref that somebody else moved,
an agent that completes nothing or crashes again and again."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import pytest

from orchestrator import states
from orchestrator.generations import Ledger
from orchestrator.ledger_values import Promotion
from tests.orchestrator import trial_kit
from tests.orchestrator.main_kit import POLICY, MainKit, leftovers

environments = trial_kit.environments
pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(300)]

# At the top of instance/__main__.py: an agent that never hears the request to restart.
DEAF = """import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
"""


def promotions(kit: MainKit) -> list[Promotion]:
    with kit.database() as connection:
        return Ledger(connection).promotions()


def test_a_promotion_is_given_up_when_main_does_not_exit(tmp_path: Path, environments: Path) -> None:
    kit = MainKit(tmp_path, environments, restart=1)
    program = (kit.repo / "instance/__main__.py").read_text()
    kit.write("instance/__main__.py", DEAF + program.replace("from __future__ import annotations\n", ""))
    kit.git("commit", "-qam", "deaf")
    kit.branch("fine")
    kit.git("checkout", "-q", "fine")
    kit.write("instance/__main__.py", program)  # the candidate hears well, else conformance would refuse it
    kit.git("commit", "-qam", "hears")
    kit.git("checkout", "-q", "main")
    kit.judge("fine")
    old = kit.head()
    with kit.supervise():
        kit.until("main to work", kit.works)
        before = kit.launch()
        done = kit.sia("promote", "fine", "--wait")
        assert done.returncode == 1, done.stderr
        assert "given up: main did not exit within 1 s; it goes on unchanged" in done.stdout
        standing = kit.standing()
        assert (standing.state, standing.generation.number, kit.head()) == (states.STABLE, 1, old)
        kit.sia("send", "m1")
        kit.until("the message", lambda: kit.heard() == ["m1"])
        after = kit.launch()
        assert before is not None and after is not None and after["nonce"] == before["nonce"]  # the same start of main
        with kit.database() as connection:
            assert Ledger(connection).data().stack == ()  # nothing was frozen


def test_a_persons_rollback_is_forced_on_a_hung_main(tmp_path: Path, environments: Path) -> None:
    kit = MainKit(tmp_path, environments, restart=3)  # also what a promotion has on a loaded machine
    kit.branch("better")
    kit.judge("better")
    with kit.supervise():
        kit.until("main to work", kit.works)
        assert kit.sia("promote", "better", "--wait").returncode == 0
        kit.sia("send", "m1")
        kit.until("the message", lambda: kit.heard() == ["m1"])
        kit.signal_main(signal.SIGSTOP)  # it hears neither SIGUSR1 nor SIGTERM
        kit.sia("send", "m2")
        done = kit.sia("rollback", "--wait")
        assert done.returncode == 0, done.stderr
        standing = kit.standing()
        assert (standing.state, standing.generation.number) == (states.STABLE, 1)
        assert kit.head() == standing.generation.commit
        kit.until("both messages", lambda: kit.heard() == ["m1", "m2"])
    with kit.database() as connection:
        causes = [row["cause"] for row in connection.execute("SELECT cause FROM launch ORDER BY started")]
    assert "main did not exit within 3 s" in causes
    assert leftovers(kit.home) == []


@pytest.mark.parametrize("ended_by", ["the ref", "a person"])
def test_a_ref_that_somebody_else_moved_holds_the_promotion(tmp_path: Path, environments: Path, ended_by: str) -> None:
    """Between the frozen data and the move, `main` names a third commit: nothing is moved, nothing runs, until it is
    put back or a person ends the promotion."""
    kit = MainKit(tmp_path, environments)
    for name in ("fine", "foreign"):
        kit.branch(name)
        kit.judge(name)
    old, foreign = kit.head(), kit.git("rev-parse", "foreign").strip()
    assert kit.sia("promote", "fine").returncode == 0
    with kit.supervise("frozen") as process:
        kit.until("death", lambda: process.poll() is not None)
    _set_main(kit, foreign)
    with kit.supervise():
        kit.until("the hold", lambda: kit.standing().state == states.HOLD)
        status = kit.sia("status").stdout
        assert "HOLD" in status and f"main is at {foreign[:12]}" in status
        assert kit.launch() is None
        assert kit.head() == foreign
        if ended_by == "the ref":
            _set_main(kit, old)
            kit.until("the promotion", lambda: kit.standing().last_good.number == 2 and kit.works())
            assert kit.head() == promotions(kit)[0].new_commit
        else:
            assert kit.sia("rollback", "--wait").returncode == 0
            kit.until("the old one", lambda: kit.standing().state == states.STABLE and kit.works())
            assert kit.head() == old
            stray = subprocess.run(
                ["git", "for-each-ref", "--format=%(objectname)", "refs/sia/stray"],
                cwd=kit.home.repository,
                capture_output=True,
                text=True,
                check=True,
            )
            assert stray.stdout.split() == [foreign]  # kept, whoever made it
    outcome = "healthy" if ended_by == "the ref" else "rolled_back"
    assert [promotion.outcome for promotion in promotions(kit)] == [outcome]


def _set_main(kit: MainKit, commit: str) -> None:
    subprocess.run(["git", "update-ref", "refs/heads/main", commit], cwd=kit.home.repository, check=True)


def test_alive_but_completing_nothing_is_told(tmp_path: Path, environments: Path) -> None:
    kit = MainKit(tmp_path, environments, timeout=2)
    with kit.supervise() as process:
        kit.until("main to work", kit.works)
        kit.write(
            "policy.toml", '[[rule]]\nwhen = "true()"\nanswer = "no action at all"\n[rule.faults]\nstall_sec = 0.05\n'
        )
        kit.restart_engine()
        kit.until("the report", lambda: any("no valid iteration for" in text for text in kit.events("stalled")))
        kit.until(
            "it in the status", lambda: "stalled" in json.loads(kit.sia("status", "--json").stdout)["main"]["state"]
        )
        assert process.poll() is None and kit.launch() is not None  # told, not killed: a person decides
        kit.write("policy.toml", POLICY)
        kit.restart_engine()
        kit.until("the all-clear", lambda: kit.events("stalled")[-1] == "main completes iterations again")
    assert kit.log.read_text().count("stalled: main is alive") == 1  # once, not at every turn


def test_progress_between_crashes_does_not_keep_the_pauses_short(tmp_path: Path, environments: Path) -> None:
    """An agent that completes iterations and then crashes, for ever, costs tokens: the pauses grow all the same."""
    kit = MainKit(tmp_path, environments, steady=1000)
    with kit.supervise():
        for crash in range(3):
            kit.until("main to work", lambda: kit.works(4))
            assert kit.standing().crashes == crash
            kit.signal_main(signal.SIGKILL)
            kit.until("the crash", lambda: kit.standing().crashes == crash + 1)  # noqa: B023
    pauses = [text.rpartition("again in ")[2] for text in kit.events("restart")]
    assert pauses == ["0.5 s", "1 s", "2 s"]


@pytest.mark.bad_input
def test_bad_input_run_in_the_safe_state(tmp_path: Path, environments: Path) -> None:
    """`sia run` where no agent may run says so, instead of waiting for ever."""
    kit = MainKit(tmp_path, environments)
    kit.branch("brittle")
    kit.judge("brittle")
    commit = kit.git("rev-parse", "brittle").strip()
    with kit.database() as connection:
        ledger = Ledger(connection)
        ledger.stage("brittle", commit, "tree", campaign=None, old=ledger.standing().generation.commit)
        ledger.approve("person")
        ledger.freeze(0)
        ledger.moved()
        ledger.abandon("a person ended it")
        ledger.returned()
        ledger.died("exit code 3")
    done = kit.sia("run")
    print(done.stderr)
    assert done.returncode == 1
    assert "no agent runs: exit code 3" in done.stderr and "sia rollback" in done.stderr
    assert "Traceback" not in done.stderr
