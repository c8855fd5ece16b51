"""`sia candidate list`."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass

from orchestrator import database
from orchestrator.cli.options import Json
from orchestrator.home import open_home
from orchestrator.untrusted import one_line


@dataclass(frozen=True)
class Listed:
    """One candidate: a proposal of the agent, or a branch that a campaign has judged. `why` is untrusted text."""

    name: str
    kind: str
    commit: str
    created: float
    state: str
    campaign: str | None
    branch: str | None
    origin: str | None
    why: str | None


def list_candidates(*, as_json: Json = False) -> int:
    """List proposals of the agent, and candidates that campaigns have judged, newest first.

    Any name in the list can be used in a campaign file; with `sia promote` those that a campaign has judged, and only
    as its verdict allows.
    """
    home = open_home()
    with closing(database.connect(home.database)) as store:
        found = sorted([*_proposals(store), *_judged(store)], key=lambda item: -item.created)
    if as_json:
        print(json.dumps([asdict(item) for item in found], indent=2))
        return 0
    if not found:
        print("no candidates yet: name branches in a campaign file, or let the agent propose one", file=sys.stderr)
    for item in found:
        age = time.strftime("%Y-%m-%d %H:%M", time.localtime(item.created))
        said = (
            f"  {one_line(item.branch or '', 60)}: {one_line(item.why or '', 100)}" if item.kind == "proposal" else ""
        )
        where = f" in {item.campaign}" if item.campaign else ""
        print(f"{one_line(item.name, 60):24} {item.commit[:12]}  {age}  {item.state}{where}{said}")
    return 0


_VERDICT = """
SELECT a.campaign, COALESCE(v.verdict, CASE WHEN a.refused IS NOT NULL THEN 'refused' ELSE c.state END) AS state
FROM arm a JOIN campaign c ON c.id = a.campaign
LEFT JOIN verdict v ON v.campaign = a.campaign AND v.arm = a.name
WHERE a.role = 'candidate' AND a.name = ? ORDER BY c.created DESC LIMIT 1
"""


def _proposals(store: sqlite3.Connection) -> list[Listed]:
    found = []
    for row in store.execute("SELECT * FROM proposal"):
        name = f"proposal/{row['id']}"
        judged = store.execute(_VERDICT, (name,)).fetchone()
        state, campaign = (judged["state"], judged["campaign"]) if judged else ("proposed", None)
        found.append(
            Listed(
                name,
                "proposal",
                row["commit_id"],
                row["created"],
                state,
                campaign,
                row["branch"],
                row["origin"],
                row["why"],
            )
        )
    return found


def _judged(store: sqlite3.Connection) -> list[Listed]:
    rows = store.execute(
        "SELECT a.name, a.proposed, MAX(c.created) AS created FROM arm a JOIN campaign c ON c.id = a.campaign"
        " WHERE a.role = 'candidate' AND a.name NOT LIKE 'proposal/%' GROUP BY a.name"
    )
    found = []
    for row in rows.fetchall():
        judged = store.execute(_VERDICT, (row["name"],)).fetchone()
        found.append(
            Listed(
                row["name"],
                "branch",
                row["proposed"],
                row["created"],
                judged["state"],
                judged["campaign"],
                None,
                None,
                None,
            )
        )
    return found
