"""kill -9 at every step of a promotion and of a rollback, then a start: main is at the old or the new commit, and an
agent runs. The steps are `faults.STEPS`, one for each durable step of the ledger's table."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from orchestrator import faults, states
from orchestrator.generations import TRIES, Ledger
from tests.orchestrator import trial_kit
from tests.orchestrator.main_kit import BRITTLE, MainKit, leftovers

environments = trial_kit.environments
pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(600)]

BY_THE_COMMAND = ("exported", "staged", "intent")  # steps that `sia promote` takes; the others are the supervisor's
ON_THE_WAY_BACK = ("failed", "rollback", "ref_back", "returned", "old_launched")
BACK = [*ON_THE_WAY_BACK, "launched", "launch_counted"]
GOOD = [step for step in faults.STEPS if step not in ON_THE_WAY_BACK]


def dies(kit: MainKit, step: str, promote: str | None = None) -> None:
    """A supervisor that is killed at `step`, with everything that ran under it. `promote`: while its main works."""
    with kit.supervise(step) as process:
        if promote:
            kit.until("main to work", kit.works)
            assert kit.sia("promote", promote).returncode == 0
        kit.until(f"death at {step}", lambda: process.poll() is not None)
        assert process.returncode == -9
    kit.until("everything to be gone", lambda: leftovers(kit.home) == [], 10)


def check_invariants(kit: MainKit, commits: set[str]) -> None:
    with kit.database() as connection:
        ledger = Ledger(connection)
        standing, promotions = ledger.standing(), ledger.promotions()
    assert kit.head() in commits
    assert standing.generation.commit in commits
    assert (kit.home.generations / standing.last_good.commit).is_dir()
    assert sum(promotion.outcome is None for promotion in promotions) <= 1
    assert all(promotion.launches <= TRIES + 1 for promotion in promotions)


@pytest.mark.parametrize("steps", [GOOD[:5], GOOD[5:]], ids=lambda steps: f"{steps[0]}-{steps[-1]}")
def test_every_step_of_a_promotion(tmp_path: Path, environments: Path, steps: list[str]) -> None:
    walk(MainKit(tmp_path, environments), steps)


@pytest.mark.parametrize("mode", ["user"], indirect=True)
def test_steps_of_a_promotion_as_an_unprivileged_user(tmp_path: Path, environments: Path, mode: str) -> None:
    """The steps that change files, refs or processes; the others are rows of the database, the same for everybody."""
    walk(MainKit(tmp_path, environments), ["stopped", "frozen", "ref_moved", "launched"])


def walk(kit: MainKit, steps: Sequence[str]) -> None:
    """One generation after the other, each promotion killed at the next step; messages are sent before and after."""
    sent: list[str] = []
    for number, step in enumerate(steps):
        kit.branch(f"cand{number}")
        kit.judge(f"cand{number}")
        sent.append(f"m{number}")
        assert kit.sia("send", sent[-1]).returncode == 0
        old = kit.head()
        if step in BY_THE_COMMAND:
            assert kit.sia("promote", f"cand{number}", fault=step).returncode == -9
        else:
            dies(kit, step, f"cand{number}")
        with kit.database() as connection:
            ledger = Ledger(connection)
            opened = ledger.standing().promotion
            commits = {old} | ({opened.new_commit} if opened else {ledger.standing().generation.commit})
        check_invariants(kit, commits)
        with kit.supervise():
            kit.until(f"a running agent after {step}", kit.works)
            check_invariants(kit, commits)
            if step in ("exported", "staged"):  # nothing was approved; the person asks again
                assert kit.standing().generation.commit == old, step
                assert kit.sia("promote", f"cand{number}", "--wait").returncode == 0
            kit.until("the promotion", lambda: kit.standing().state == states.STABLE and kit.works())
            assert kit.standing().generation.candidate == f"cand{number}", step
            assert kit.head() == kit.standing().generation.commit
            kit.until(f"all messages after {step}", lambda: kit.heard() == sent)


@pytest.mark.parametrize("steps", [BACK[:4], BACK[4:]], ids=lambda steps: f"{steps[0]}-{steps[-1]}")
def test_every_step_of_a_rollback(tmp_path: Path, environments: Path, steps: list[str]) -> None:
    """The new generation is broken, and the supervisor is killed on the way back; one candidate after the other."""
    kit = MainKit(tmp_path, environments)
    with kit.supervise():
        kit.until("main to work", lambda: kit.works(4))
    old = kit.head()
    sent: list[str] = []
    for number, step in enumerate(steps):
        kit.branch(f"brittle{number}", top=BRITTLE)
        kit.judge(f"brittle{number}")
        sent.append(f"m{number}")
        assert kit.sia("send", sent[-1]).returncode == 0
        assert kit.sia("promote", f"brittle{number}").returncode == 0
        new = kit.standing().promotion.new_commit
        dies(kit, step)
        check_invariants(kit, {old, new})
        with kit.supervise():
            kit.until("the old one to hold up", lambda: kit.standing().state == states.STABLE and kit.works())
            assert kit.head() == kit.standing().generation.commit == old, step
            kit.until(f"all messages after {step}", lambda: kit.heard() == sent)
            with kit.database() as connection:
                ledger = Ledger(connection)
                promotion = ledger.promotions()[number]
                assert promotion.outcome == "rolled_back", step
                assert ledger.bad(promotion.tree), step
            check_invariants(kit, {old})


def test_killed_at_the_same_step_again_and_again(tmp_path: Path, environments: Path) -> None:
    """Launches of a promotion are bounded whatever is killed how often: the last kill rolls it back."""
    kit = MainKit(tmp_path, environments)
    with kit.supervise():
        kit.until("main to work", kit.works)
    kit.branch("fine")
    kit.judge("fine")
    old = kit.head()
    assert kit.sia("promote", "fine").returncode == 0
    for _ in range(TRIES):
        dies(kit, "launched")
    with kit.supervise():
        kit.until("the old one", lambda: kit.standing().state == states.STABLE and kit.works())
        assert kit.head() == old
        with kit.database() as connection:
            promotion = Ledger(connection).promotions()[0]
        assert (promotion.outcome, promotion.launches) == ("rolled_back", TRIES)


def test_recovery_twice_is_recovery_once(tmp_path: Path, environments: Path) -> None:
    """Also after the ref, an export and the table of running instances were damaged behind the ledger's back."""
    import shutil
    import subprocess

    from orchestrator.config import load_settings
    from orchestrator.recovery import recover
    from sandbox.host import Host

    kit = MainKit(tmp_path, environments)
    with kit.supervise() as process:
        kit.until("main to work", kit.works)
        process.kill()
        process.wait()
    kit.branch("other")
    kit.judge("other")  # fetches the commit
    right = kit.head()
    with kit.database() as connection:
        wrong = connection.execute("SELECT judged FROM arm").fetchone()[0]
    subprocess.run(["git", "update-ref", "refs/heads/main", wrong], cwd=kit.home.repository, check=True)
    export = kit.home.generations / right
    subprocess.run(["chmod", "-R", "u+w", str(export)], check=True)
    shutil.rmtree(export / "procedures")
    settings = load_settings(kit.repo)
    pictures = []
    with Host.detect(kit.home.root) as host:
        for _ in range(2):
            with kit.database() as connection:
                recover(kit.home, settings, connection, host)
                tables = ("ledger", "generation", "promotion", "main_data", "running", "launch", "event")
                rows = [[tuple(row) for row in connection.execute(f"SELECT * FROM {table}")] for table in tables]
            refs = subprocess.run(["git", "for-each-ref"], cwd=kit.home.repository, capture_output=True).stdout
            files = sorted(str(path) for path in kit.home.generations.rglob("*"))
            pictures.append((rows, refs, files))
    assert kit.head() == right
    assert (export / "procedures").is_dir()
    assert pictures[0] == pictures[1]
