"""kill -9 of the runner at random moments: the resumed campaign concludes what an undisturbed one does."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator.locks import holder
from tests.orchestrator.campaigns import CARE, PROMPT, Workplace, children, gone, untouched
from tests.orchestrator.trial_kit import environments as environments

pytestmark = [pytest.mark.sandbox, pytest.mark.slow, pytest.mark.timeout(300)]
KILLS = 3
CUT = "cut off: the campaign's process was killed"
REPEATS = [("user", 2)] if os.geteuid() else [("root", 1), ("user", 2)]  # rights matter only to how sandboxes end


def finished(place: Workplace, campaign: str) -> dict[str, tuple[Any, ...]]:
    """Every finished trial's row, as it lies in the database."""
    if not (place.state / "sia.db").exists():
        return {}
    with closing(sqlite3.connect(place.state / "sia.db", timeout=30)) as connection:
        query = "SELECT id, started, finished, attempt, record FROM trial WHERE campaign = ? AND state = 'done'"
        return {row[0]: tuple(row[1:]) for row in connection.execute(query, (campaign,))}


def conclusions(place: Workplace, campaign: str) -> dict[str, Any]:
    """Verdicts with all numbers but the guardrails' amounts: contexts hold times, so tokens differ a little. Without
    the reason that names trials which were cut off."""
    return {
        arm: verdict
        | {
            "guardrails": [(g["name"], g["broken"]) for g in verdict["guardrails"]],
            "reasons": [reason for reason in verdict["reasons"] if CUT not in reason],
        }
        for arm, verdict in place.shown(campaign)["verdicts"].items()
    }


@pytest.mark.parametrize(("mode", "repeats"), REPEATS)
def test_killed_at_three_random_moments_and_resumed(
    mode: str, repeats: int, tmp_path: Path, environments: Path
) -> None:
    place = Workplace(tmp_path, environments)
    place.branch("careful", {PROMPT: CARE})
    place.campaign_file("careful", repeats=repeats)
    before = untouched(place)
    place.sia("campaign", "run", "campaign.toml")
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    kept: dict[str, tuple[Any, ...]] = {}
    words = ["campaign", "run", "campaign.toml"]
    for kill in range(KILLS):
        process = place.start(*words)
        more = chance.randrange(1, 3 * repeats + 1)
        wait_for_trials(place, min(len(kept) + more, 12 * repeats - 4), chance.uniform(0, 0.4), process)
        family = children(process.pid)
        process.kill()
        with process:
            assert process.wait() == -signal.SIGKILL, process.stdout.read() if process.stdout else ""
        assert gone(family, place) == [], f"left over after kill {kill + 1}"
        now = finished(place, "c0002")
        assert kept.items() <= now.items(), "a finished trial was touched"
        kept = now
        assert place.shown("c0002")["state"] == "died"
        words = ["campaign", "resume", "c0002"]
    place.sia(*words)
    assert kept.items() <= finished(place, "c0002").items(), "a finished trial ran again"
    assert conclusions(place, "c0002") == conclusions(place, "c0001")
    assert place.verdicts("c0002")["careful"] == "better"
    shown = place.shown("c0002")
    assert any(CUT in reason for reason in shown["verdicts"]["careful"]["reasons"]) == bool(shown["set_aside"])
    assert untouched(place) == before
    nothing_is_left(place)


def wait_for_trials(place: Workplace, count: int, longer: float, process: Any) -> None:
    """Until `count` trials are done, and then some: any moment of the next ones."""
    deadline = time.monotonic() + 60
    while len(finished(place, "c0002")) < count:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    time.sleep(longer)


def nothing_is_left(place: Workplace) -> None:
    """No lock, layer, half-made copy or worktree; no row of something that runs."""
    assert not list((place.state / "run").iterdir())
    assert not list((place.state / "campaigns").glob("*/trials/*/layers"))
    assert not list((place.state / "campaigns").glob("*/tasks"))
    assert place.git("worktree", "list").count("\n") == 0
    assert not (place.state / "repo.git/worktrees").exists()
    assert not list((place.state / "repo.git").rglob("*.lock")) and not list((place.root / ".git").rglob("*.lock"))
    assert not [path for path in place.state.rglob("*.lock") if holder(path) is not None]
    with closing(sqlite3.connect(place.state / "sia.db")) as connection:
        assert connection.execute("SELECT count(*) FROM running").fetchone()[0] == 0
        assert connection.execute("SELECT count(*) FROM trial WHERE state = 'running'").fetchone()[0] == 0
    mounts = Path("/proc/self/mounts").read_text()
    assert str(place.root) not in mounts
    assert [path.name for path in (place.state / "campaigns/c0002").iterdir()] == ["trials"]
