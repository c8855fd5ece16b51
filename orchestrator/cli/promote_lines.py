"""A promotion in one line, for `sia generations`, `sia promote` and `sia status` (imports next to nothing)."""

from __future__ import annotations

from typing import Any

from orchestrator.untrusted import one_line


def promotion_line(promotion: dict[str, Any]) -> str:
    """One promotion or rollback in one line (shared with `sia status`)."""
    outcome = (promotion["outcome"] or "open").replace("_", " ")
    cause = f": {promotion['cause']}" if promotion["cause"] else ""
    to = f"generation {promotion['new']}" if promotion["new"] else promotion["new_commit"][:12]
    head = f"{promotion['kind']} {promotion['id']} from generation {promotion['old']} to {to}"
    return one_line(f"{head} ({promotion['candidate']}): {outcome}{cause}", 300)
