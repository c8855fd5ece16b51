"""A state in words, a promotion in one line: for `sia generations`, `promote`, `status` (imports next to nothing)."""

from __future__ import annotations

from typing import Any

from orchestrator.untrusted import one_line

SAYS = {
    "STABLE": "",
    "STAGED": "a candidate is staged and waits for approval: `sia promote`",
    "INTENT": "a change of main has begun",
    "TRIAL": "a new generation boots",
    "HOLD": "on hold, nothing is judged",
    "ROLLBACK": "rolling back",
    "SAFE": "SAFE: no agent runs; decide with `sia rollback [GENERATION]` or promote a repaired candidate",
}


def promotion_line(promotion: dict[str, Any]) -> str:
    """One promotion or rollback in one line (shared with `sia status`)."""
    outcome = (promotion["outcome"] or "open").replace("_", " ")
    cause = f": {promotion['cause']}" if promotion["cause"] else ""
    to = f"generation {promotion['new']}" if promotion["new"] else promotion["new_commit"][:12]
    head = f"{promotion['kind']} {promotion['id']} from generation {promotion['old']} to {to}"
    name = f" ({promotion['candidate']})" if promotion["kind"] == "promotion" else ""
    return one_line(f"{head}{name}: {outcome}{cause}", 300)
