"""What instances may ask the supervisor for: proposals, results, status. Answers are text for a model to read."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections import defaultdict, deque
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from orchestrator import database
from orchestrator.agent_history import accept_proposal
from orchestrator.errors import Failed, UsageError
from orchestrator.home import Home

BRANCH_LENGTH = 100
REASON_LENGTH = 4000
PROPOSALS_AN_HOUR = 10  # of one instance
ATTEMPTS_AN_HOUR = 30  # the same, with those that were refused: each is unpacked and checked


@dataclass(frozen=True)
class HomeServices:
    """Answers out of one home. Every instance gets the same ones: nothing here depends on who asks.

    Campaigns that run are not spoken of: one that runs would tell an instance that it may be judged just now, and its
    results so far would be other trials' results.
    """

    home: Home
    agent_paths: tuple[str, ...]
    _attempts: dict[str, deque[float]] = field(default_factory=dict, compare=False)  # when each instance proposed
    _counting: threading.Lock = field(default_factory=threading.Lock, compare=False)

    def propose(self, origin: str, branch: str, why: str, bundle: bytes) -> str:
        """Store a proposal; people see it in `sia candidate list`. A few in an hour: each may take 16 MB of disk."""
        if len(branch) > BRANCH_LENGTH or len(why) > REASON_LENGTH:
            raise UsageError("the branch's name or the reason is too long", fix="write less")
        with closing(_read(self.home.database)) as connection:
            recent = connection.execute(
                "SELECT COUNT(*) FROM proposal WHERE origin = ? AND created > ?", (origin, time.time() - 3600)
            ).fetchone()[0]
        if recent >= PROPOSALS_AN_HOUR:
            what = f"{recent} proposals came within the last hour, the most is {PROPOSALS_AN_HOUR}"
            raise UsageError(what, fix="wait, and propose only what you have tested")
        self._count(origin)
        stored = accept_proposal(self.home, branch, why, bundle, origin, self.agent_paths)
        return f"The proposal is stored as {stored}. People decide when it is judged against the running generation."

    def _count(self, origin: str) -> None:
        """One more attempt, if there may be one."""
        now = time.monotonic()
        with self._counting:
            for name in [name for name, times in self._attempts.items() if times[-1] < now - 3600]:
                del self._attempts[name]
            attempts = self._attempts.get(origin, deque())
            if len(attempts) == ATTEMPTS_AN_HOUR and attempts[0] > now - 3600:
                what = f"{ATTEMPTS_AN_HOUR} proposals were tried within the last hour, which is the most"
                raise UsageError(what, fix="wait, and propose only what you have tested")
            self._attempts[origin] = deque((*attempts, now), maxlen=ATTEMPTS_AN_HOUR)

    def results(self, origin: str, campaign: str) -> str:
        """Verdicts and mean rewards of a campaign that has ended, unless one of its tasks is sealed."""
        with closing(_read(self.home.database)) as connection:
            found = connection.execute(
                "SELECT id, state FROM campaign WHERE state = 'done' AND id LIKE ? || '%' ESCAPE '!'"
                " ORDER BY created DESC LIMIT 1",
                (campaign.replace("!", "!!").replace("%", "!%").replace("_", "!_"),),
            ).fetchone()
            if found is None:
                return "There is no such campaign." if campaign else "No campaign has ended yet."
            trials = connection.execute(
                "SELECT arm, task, reward FROM trial WHERE campaign = ? AND state = 'done' ORDER BY position",
                (found["id"],),
            ).fetchall()
            sealed = connection.execute(
                "SELECT 1 FROM campaign_task WHERE campaign = ? AND split = 'sealed' LIMIT 1", (found["id"],)
            ).fetchone()
            verdicts = dict(
                connection.execute("SELECT arm, verdict FROM verdict WHERE campaign = ?", (found["id"],)).fetchall()
            )
        head = f"Campaign {found['id']} ({found['state']})"
        if sealed:  # a mean or a verdict over sealed tasks tells about them too
            return f"{head}: its results are sealed."
        rewards: dict[tuple[str, str], list[float]] = defaultdict(list)
        for trial in trials:
            if trial["reward"] is not None:
                rewards[trial["arm"], trial["task"]].append(trial["reward"])
        lines = [f"{head}. Mean reward of each task:"]
        for arm in dict.fromkeys(arm for arm, _ in rewards):
            tasks = {task: sum(r) / len(r) for (of, task), r in sorted(rewards.items()) if of == arm}
            verdict = f", verdict: {verdicts[arm]}" if arm in verdicts else ""
            lines.append(f"{arm}: mean {sum(tasks.values()) / len(tasks):.3f}{verdict}")
            lines += [f"  {task}: {mean:.3f}" for task, mean in tasks.items()]
        return "\n".join(lines)

    def status(self, origin: str) -> str:
        """The latest campaigns that have ended, by name."""
        with closing(_read(self.home.database)) as connection:
            campaigns = connection.execute(
                "SELECT id, state FROM campaign WHERE state = 'done' ORDER BY created DESC LIMIT 5"
            ).fetchall()
        if not campaigns:
            return "The supervisor runs. No campaign has ended yet."
        lines = "\n".join(f"{row['id']}: {row['state']}" for row in campaigns)
        return f"The supervisor runs. The campaigns that ended last:\n{lines}"

    def trial(self, origin: str, branch: str, task: str) -> str:
        """Refused: this version makes no test instances for instances."""
        raise Failed(
            "test instances of your own are not to be had in this version",
            fix="test the branch in your clone, then propose it; it is judged in a campaign",
        )


def _read(path: Path) -> sqlite3.Connection:
    return database.connect(path, read_only=path.exists())
