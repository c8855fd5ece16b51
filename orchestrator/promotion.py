"""From a verdict to an approved promotion: the gate, then STAGED, then INTENT. The supervisor does the rest.

What is promoted is exactly what was judged: the commit J of the verdict, whose tree hash is verified again here.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import TYPE_CHECKING

from orchestrator import faults, states
from orchestrator.candidates import build
from orchestrator.errors import Failed, Refused, UsageError
from orchestrator.generations import Generation, Ledger, Promotion
from orchestrator.repository import Repository

if TYPE_CHECKING:
    from orchestrator.agent_build import AgentBuild
    from orchestrator.campaign_store import Judged
    from orchestrator.config import Settings
    from orchestrator.home import Home
    from sandbox.host import Host

ACCEPTABLE = ("equivalent", "inconclusive")  # verdicts that a person may accept with a reason


def ensure_first(home: Home, settings: Settings, connection: sqlite3.Connection) -> Generation:
    """The current generation; the first one is recorded from the checkout's HEAD commit if there is none yet.

    Campaigns take their baseline from it. Raises ConfigError for a repository without a commit.
    """
    ledger = Ledger(connection)
    if ledger.exists():
        return ledger.standing().generation
    repository = Repository(home).ensure()
    commit = repository.head()
    export = repository.export(commit, settings.agent.paths, home.generations)
    return ledger.found(commit, export.tree)


def gate(ledger: Ledger, settings: Settings, judged: Judged, accept: str | None) -> None:
    """Let a candidate through, or raise Refused with the rule that stops it. `accept` is a person's reason.

    `better` passes. `equivalent` and `inconclusive` pass with a reason. `worse` and `disqualified` never pass. A tree
    that was rolled back before needs a reason too. A verdict against anything but the current generation is stale.
    """
    where = f"{judged.arm} in campaign {judged.campaign}"
    current = ledger.standing().generation
    if settings.promotion.policy == "never":
        fix = 'set [promotion] policy = "ask" or "auto" in sia.toml'
        raise Refused('promotions are switched off ([promotion] policy = "never")', where=where, fix=fix)
    if accept is not None and not accept.strip():
        raise UsageError("--accept needs a reason", where=where, fix='write why, for example --accept "fixes a crash"')
    if judged.tree == current.tree:
        raise Refused(
            f"it is what generation {current.number} is already", where=where, fix="there is nothing to promote"
        )
    if judged.baseline != current.commit:
        raise Refused(
            f"it was judged against {judged.baseline[:12]}, but main is generation {current.number}"
            f" ({current.commit[:12]}): the verdict is stale",
            where=where,
            fix="merge and judge again: run the campaign against the current generation",
        )
    if judged.verdict != "better":
        _not_better(judged, accept, where)
    bad = ledger.bad(judged.tree)
    if bad is not None and accept is None:
        fix = "change the candidate and judge it again; a person can insist with --accept REASON"
        raise Refused(f"this tree was rolled back before ({bad})", where=where, fix=fix)


def _not_better(judged: Judged, accept: str | None, where: str) -> None:
    if judged.verdict not in ACCEPTABLE:
        raise Refused(
            f"its verdict is {judged.verdict}; that is never promoted", where=where, fix="repair the candidate"
        )
    if accept is None:
        fix = "judge it with more repeats or tasks, or take responsibility with --accept REASON"
        raise Refused(f"its verdict is {judged.verdict}, not better", where=where, fix=fix)


def promote(
    home: Home,
    settings: Settings,
    connection: sqlite3.Connection,
    host: Host,
    judged: Judged,
    *,
    accept: str | None = None,
    by: str = "person",
    report: Callable[[str], None] = lambda text: None,
) -> Promotion:
    """Gate, stage and approve; returns the promotion in INTENT. A running supervisor takes it from there.

    Raises Refused (the gate, a failed conformance check), Failed (another promotion is open, a tree that differs).
    """
    ledger = Ledger(connection)
    standing = ledger.standing()
    if standing.state == states.STAGED and standing.promotion and standing.promotion.new_commit == judged.judged:
        report(f"promotion {standing.promotion.id} was staged before")
        gate(ledger, settings, judged, accept)
        _verified(home, settings, judged)
        return _approved(ledger, by)
    ledger.check_closed()  # first: while one is open, main may be a generation that nothing was judged against
    gate(ledger, settings, judged, accept)
    made = _verified(home, settings, judged)
    faults.point("exported")
    report("exported and verified; checking conformance")
    _conformant(host, made, judged)
    _sync(home)
    ledger.stage(
        judged.arm,
        judged.judged,
        judged.tree,
        campaign=judged.campaign,
        accepted=_reason(ledger, judged, accept),
        old=judged.baseline,
    )
    faults.point("staged")
    return _approved(ledger, by)


def _approved(ledger: Ledger, by: str) -> Promotion:
    standing = ledger.standing()
    try:
        promotion = ledger.approve(by)
    except states.IllegalMove:
        if standing.promotion is None or ledger.promotion(standing.promotion.id).approved is None:
            raise Failed("it was withdrawn at the same moment", where="promotion", fix="try again") from None
        return ledger.promotion(standing.promotion.id)  # the supervisor's policy was faster
    faults.point("intent")
    return promotion


def _verified(home: Home, settings: Settings, judged: Judged) -> AgentBuild:
    """The export that main would run from, with the tree that was judged."""
    made = build(home, settings, judged.judged)
    if made.tree != judged.tree:
        fix = "judge the candidate again"
        raise Failed(f"the tree is {made.tree[:12]}, judged was {judged.tree[:12]}", where=judged.arm, fix=fix)
    return made


def _conformant(host: Host, made: AgentBuild, judged: Judged) -> None:
    from orchestrator.conformance import GATE, check

    failed = [item for item in check(host, made, GATE) if not item.passed]
    if failed:
        first = failed[0]
        raise Refused(
            f"conformance check {first.number} ({first.title}) fails: {first.detail}",
            where=judged.arm,
            fix="repair the candidate; `sia conformance` shows every check",
        )


def _reason(ledger: Ledger, judged: Judged, accept: str | None) -> str | None:
    if accept is None:
        return None
    bad = ledger.bad(judged.tree)
    return f"{accept} (although it was rolled back before: {bad})" if bad else accept


def _sync(home: Home) -> None:
    """Exports and git objects reach the disk before the ledger names them."""
    import ctypes

    descriptor = os.open(home.root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        if ctypes.CDLL(None, use_errno=True).syncfs(descriptor) != 0:
            raise Failed(os.strerror(ctypes.get_errno()), where=str(home.root), fix="check the disk")
    finally:
        os.close(descriptor)


def find_better(connection: sqlite3.Connection) -> tuple[str, str] | None:
    """Candidate and campaign that policy `auto` promotes next, or None: `better` against the current generation in a
    finished campaign, not tried before, not BAD; of several the one with the greatest difference.

    A verdict that rests on trials which a person had run again is theirs to promote: who may choose what is repeated
    can choose what comes out.
    """
    row = connection.execute(
        "SELECT arm.name AS name, arm.campaign AS campaign FROM verdict"
        " JOIN arm ON arm.campaign = verdict.campaign AND arm.name = verdict.arm"
        " JOIN campaign ON campaign.id = arm.campaign"
        " WHERE verdict.verdict = 'better' AND campaign.state = 'done'"
        " AND campaign.baseline ="
        " (SELECT commit_id FROM generation WHERE number = (SELECT generation FROM ledger WHERE state = 'STABLE'))"
        " AND arm.tree NOT IN (SELECT tree FROM bad_tree)"
        " AND NOT EXISTS (SELECT 1 FROM promotion WHERE promotion.new_commit = arm.judged"
        " AND promotion.campaign = arm.campaign AND promotion.outcome IS NOT NULL)"
        " AND NOT EXISTS (SELECT 1 FROM trial_attempt JOIN trial ON trial.id = trial_attempt.trial"
        " WHERE trial.campaign = arm.campaign AND trial.arm IN (arm.name, 'baseline'))"
        " ORDER BY json_extract(verdict.numbers, '$.difference') DESC, campaign.finished DESC LIMIT 1"
    ).fetchone()
    return None if row is None else (row["name"], row["campaign"])


def go_back(connection: sqlite3.Connection, number: int | None, *, with_state: bool) -> str:
    """`sia rollback`: what a person means by it in the present state. Returns what will happen, in words.

    With a promotion open and no number: end that promotion. In SAFE without a number: try the same generation again.
    Else go to generation `number` (default: the good one before the current).
    """
    try:
        return _go_back(Ledger(connection), number, with_state=with_state)
    except states.IllegalMove as error:
        fix = "look at `sia status`, and try again"
        raise Failed(f"main changed at the same moment ({error})", where="rollback", fix=fix) from None


def _go_back(ledger: Ledger, number: int | None, *, with_state: bool) -> str:
    standing = ledger.standing()
    if standing.promotion is not None:
        return _end_open(ledger, standing.promotion, standing.state, number)
    if standing.state == states.SAFE and number in (None, standing.generation.number):
        ledger.retry()
        return f"generation {standing.generation.number} is tried again"
    target = number if number is not None else before(ledger, standing.generation)
    ledger.request(target, with_state=with_state)
    return f"main goes back to generation {target}" + (" with its data of then" if with_state else "; data stay")


def _end_open(ledger: Ledger, promotion: Promotion, state: str, number: int | None) -> str:
    if number not in (None, promotion.old):
        raise Failed(
            f"promotion {promotion.id} ({promotion.candidate}) is open: {state}",
            where="rollback",
            fix="end it first with `sia rollback`, then name the generation",
        )
    if state == states.STAGED:
        ledger.withdraw("a person withdrew it")
        return f"promotion {promotion.id} is withdrawn; main is unchanged"
    if state == states.INTENT and promotion.frozen is None:
        ledger.give_up("a person ended it")
        return f"promotion {promotion.id} is given up; main is unchanged"
    if state != states.ROLLBACK:
        ledger.abandon("a person ended it")
    return f"promotion {promotion.id} is rolled back to generation {promotion.old}"


def before(ledger: Ledger, current: Generation) -> int:
    """The last good generation before `current`, which a rollback without a number goes to. Raises Failed: none."""
    number = current.parent
    while number is not None:
        generation = ledger.generation(number)
        if generation.state == "good":
            return number
        number = generation.parent
    raise Failed(f"there is no good generation before {current.number}", where="rollback", fix="see `sia generations`")
