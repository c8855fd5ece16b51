"""The steps that move main to another generation or back. Each can be repeated after a kill; no main instance runs."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from orchestrator import faults

if TYPE_CHECKING:
    from orchestrator.generations import Ledger, Promotion
    from orchestrator.repository import Repository


def advance(ledger: Ledger, repository: Repository, promotion: Promotion) -> None:
    """INTENT with main stopped → TRIAL (or HOLD): freeze the data, move the ref by compare-and-swap, number it."""
    ledger.freeze(ledger.data().stdin_offset)
    faults.point("frozen")
    head = repository.head()
    if head == promotion.old_commit:
        repository.move_main(promotion.new_commit, promotion.old_commit)
    elif head != promotion.new_commit:
        ledger.foreign_ref(
            f"main is at {head[:12]}, neither {promotion.old_commit[:12]} nor {promotion.new_commit[:12]}:"
            " `sia rollback` ends the promotion"
        )
        return
    faults.point("ref_moved")
    moved = ledger.moved()
    faults.point("trial")
    repository.set_ref(f"refs/sia/generations/{moved.new}", moved.new_commit)


def roll_back(ledger: Ledger, repository: Repository, promotion: Promotion) -> None:
    """ROLLBACK → STABLE(old): keep the bad commit under a ref, move the ref back, then data and messages."""
    faults.point("rollback")
    if promotion.new is not None and ledger.generation(promotion.new).state == "bad":
        repository.set_ref(f"refs/sia/bad/{promotion.new}", promotion.new_commit)
    head = repository.head()
    if head != promotion.old_commit:
        if head != promotion.new_commit:
            repository.set_ref(f"refs/sia/stray/{int(time.time())}", head)
        repository.move_main(promotion.old_commit, head)
    faults.point("ref_back")
    ledger.returned()
    faults.point("returned")


def ref_is_back(ledger: Ledger, repository: Repository, promotion: Promotion) -> bool:
    """HOLD for a foreign ref → INTENT, once the ref is one of the two again."""
    if repository.head() not in (promotion.old_commit, promotion.new_commit):
        return False
    ledger.ref_back()
    return True
