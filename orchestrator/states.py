"""States of the promotion ledger and the moves between them. An illegal move raises."""

STABLE = "STABLE"  # one generation runs, nothing is open
STAGED = "STAGED"  # a candidate is exported, verified and conformant; it waits for approval
INTENT = "INTENT"  # approved: main is being stopped, its data frozen, the ref moved
TRIAL = "TRIAL"  # the new generation boots, a counted number of times
HOLD = "HOLD"  # something outside is wrong (engine, foreign ref): nothing is judged
ROLLBACK = "ROLLBACK"  # the new generation is bad; ref and data go back
SAFE = "SAFE"  # the old one died too: no agent runs, a person decides

STATES = (STABLE, STAGED, INTENT, TRIAL, HOLD, ROLLBACK, SAFE)

TRANSITIONS: dict[tuple[str, str], str] = {
    (STABLE, "stage"): STAGED,
    (SAFE, "stage"): STAGED,
    (STAGED, "approve"): INTENT,
    (STAGED, "withdraw"): STABLE,
    (STABLE, "request"): INTENT,  # a person goes to another generation
    (SAFE, "request"): INTENT,
    (SAFE, "retry"): STABLE,
    (STABLE, "died"): SAFE,
    (STABLE, "crash"): STABLE,
    (STAGED, "crash"): STAGED,
    (INTENT, "crash"): INTENT,
    (INTENT, "freeze"): INTENT,
    (INTENT, "moved"): TRIAL,
    (INTENT, "give_up"): STABLE,
    (INTENT, "foreign_ref"): HOLD,
    (TRIAL, "launch"): TRIAL,
    (TRIAL, "healthy"): STABLE,
    (TRIAL, "failed"): TRIAL,
    (TRIAL, "give_back"): TRIAL,
    (TRIAL, "exhausted"): ROLLBACK,
    (TRIAL, "outage"): HOLD,
    (HOLD, "engine_back"): TRIAL,
    (HOLD, "ref_back"): INTENT,
    (INTENT, "abandon"): ROLLBACK,  # a person ends it; before the data are frozen it is given up instead
    (HOLD, "abandon"): ROLLBACK,
    (TRIAL, "abandon"): ROLLBACK,
    (ROLLBACK, "returned"): STABLE,
}


class IllegalMove(Exception):
    """A move that the transition table does not know; a fault of this program, never of a person."""


def after(state: str, event: str) -> str:
    """The state after `event`. Raises IllegalMove."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalMove(f"{event} in state {state}") from None
