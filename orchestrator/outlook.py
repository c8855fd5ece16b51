"""What `sia promote` and `sia rollback` would do, in sentences: for `--dry-run` and for dialogs. Changes nothing."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

from orchestrator import states
from orchestrator.campaign_store import find_judged
from orchestrator.errors import Failed
from orchestrator.generations import Ledger
from orchestrator.promotion import ACCEPTABLE, before, gate
from orchestrator.supervisor_lock import holder
from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    from orchestrator.config import Settings
    from orchestrator.home import Home
    from orchestrator.ledger_values import Promotion

WAITS = "No supervisor runs: it waits for the next start (`sia supervise`)."


def promotion(
    home: Home,
    settings: Settings,
    connection: sqlite3.Connection,
    candidate: str,
    campaign: str | None = None,
    *,
    accept: str | None = None,
) -> str:
    """What promoting a candidate would do. Raises what `promote` would raise at its gate."""
    judged = find_judged(connection, candidate, campaign)
    ledger = Ledger(connection)
    standing = ledger.standing()
    open_one = standing.promotion
    if not (open_one is not None and standing.state == states.STAGED and open_one.new_commit == judged.judged):
        ledger.check_closed()
    gate(ledger, settings, judged, accept)
    rules = settings.promotion
    text = (
        f"{one_line(judged.arm, 60)} ({judged.verdict} in campaign {judged.campaign}) becomes main: exactly the judged "
        f"commit {judged.judged[:12]} in place of generation {standing.generation.number} "
        f"({standing.generation.commit[:12]}). The conformance check runs once more. Then the main instance is asked "
        f"to restart, and boots the new generation: it must complete {rules.healthy_iterations} iterations "
        f"within {rules.timeout_sec:g} s, else it is rolled back by itself."
    )
    if accept is not None:
        text += f" Your reason is recorded: {one_line(accept, 200)}"
    return text + _waits(home)


def needs_reason(connection: sqlite3.Connection, candidate: str, campaign: str | None = None) -> bool:
    """Whether only a person with a reason may promote it: a verdict that says too little, or a tree that failed before.

    Raises UsageError where there is no verdict.
    """
    judged = find_judged(connection, candidate, campaign)
    return judged.verdict in ACCEPTABLE or Ledger(connection).bad(judged.tree) is not None


def rollback(home: Home, connection: sqlite3.Connection, number: int | None = None, *, with_state: bool = False) -> str:
    """What `go_back` would do. Raises Failed where it would."""
    ledger = Ledger(connection)
    if not ledger.exists():
        raise Failed("there is no generation yet", where="rollback", fix="start main: `sia supervise`")
    standing = ledger.standing()
    current = standing.generation
    if standing.promotion is not None:
        return _ends(standing.promotion, standing.state, number) + _waits(home)
    if standing.state == states.SAFE and number in (None, current.number):
        return f"No agent runs (SAFE). Generation {current.number} is tried again as it is." + _waits(home)
    target = ledger.generation(number if number is not None else before(ledger, current))
    if target.number == current.number:
        raise Failed(f"generation {target.number} is the current one", where="rollback", fix="see `sia generations`")
    if target.state != "good":
        fix = "name a good generation, or promote its branch with --accept REASON"
        raise Failed(f"generation {target.number} is {target.state} ({target.cause})", where="rollback", fix=fix)
    data = "its data go back to that time too; what was written since is kept aside" if with_state else "its data stay"
    return (
        f"Main goes back from generation {current.number} ({one_line(current.candidate, 60)}) to generation "
        f"{target.number} ({one_line(target.candidate, 60)}, {target.commit[:12]}): the main instance is asked to "
        f"restart and runs the old code; {data}. The ledger keeps both." + _waits(home)
    )


def _ends(promotion: Promotion, state: str, number: int | None) -> str:
    name = f"promotion {promotion.id} ({one_line(promotion.candidate, 60)})"
    if number not in (None, promotion.old):
        fix = "end it first with `sia rollback`, then name the generation"
        raise Failed(f"{name} is open: {state}", where="rollback", fix=fix)
    if state == states.STAGED:
        return f"The staged {name} is withdrawn; main is unchanged."
    if state == states.INTENT and promotion.frozen is None:
        return f"The {name} has not touched main yet and is given up; main is unchanged."
    return (
        f"The open {name} ends as rolled back: main goes back to generation {promotion.old}, with its data of before."
    )


def _waits(home: Home) -> str:
    return "" if holder(home) is not None else f" {WAITS}"
