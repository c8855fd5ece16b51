"""What instances may ask the supervisor for: proposals, results, status. Answers are text for a model to read."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from orchestrator import database
from orchestrator.agent_history import accept_proposal
from orchestrator.errors import Failed, UsageError
from orchestrator.home import Home

BRANCH_LENGTH = 100
REASON_LENGTH = 4000


@dataclass(frozen=True)
class HomeServices:
    """Answers out of one home. Every instance gets the same ones: nothing here depends on who asks."""

    home: Home
    agent_paths: tuple[str, ...]

    def propose(self, origin: str, branch: str, why: str, bundle: bytes) -> str:
        """Store a proposal; people see it in `sia candidate list`."""
        if len(branch) > BRANCH_LENGTH or len(why) > REASON_LENGTH:
            raise UsageError("the branch's name or the reason is too long", fix="write less")
        stored = accept_proposal(self.home, branch, why, bundle, origin, self.agent_paths)
        return f"The proposal is stored as {stored}. People decide when it is judged against the running generation."

    def results(self, origin: str, campaign: str) -> str:
        """Verdicts and mean rewards of a campaign, unless one of its tasks is sealed."""
        with closing(_read(self.home.database)) as connection:
            found = connection.execute(
                "SELECT id, state FROM campaign WHERE id LIKE ? || '%' ESCAPE '!' ORDER BY created DESC LIMIT 1",
                (campaign.replace("!", "!!").replace("%", "!%").replace("_", "!_"),),
            ).fetchone()
            if found is None:
                return "There is no such campaign." if campaign else "There is no campaign yet."
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
        """The latest campaigns, by name."""
        with closing(_read(self.home.database)) as connection:
            campaigns = connection.execute("SELECT id, state FROM campaign ORDER BY created DESC LIMIT 5").fetchall()
        if not campaigns:
            return "The supervisor runs. There is no campaign yet."
        lines = "\n".join(f"{row['id']}: {row['state']}" for row in campaigns)
        return f"The supervisor runs. Latest campaigns:\n{lines}"

    def trial(self, origin: str, branch: str, task: str) -> str:
        """Refused: the quota of self-made test instances is 0 until the operator enables it."""
        raise Failed(
            "test instances of your own are not enabled here (the quota is 0)",
            fix="test the branch in your clone, then propose it; it is judged in a campaign",
        )


def _read(path: Path) -> sqlite3.Connection:
    return database.connect(path, read_only=path.exists())
