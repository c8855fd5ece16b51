"""`sia promote`, `sia rollback`, `sia generations`: what main is, was, and shall be."""

from __future__ import annotations

import json
import sys
import time
from contextlib import closing
from dataclasses import asdict
from typing import TYPE_CHECKING

from orchestrator import database
from orchestrator.cli.options import DryRun, Json
from orchestrator.cli.promote_lines import SAYS, promotion_line
from orchestrator.errors import Failed
from orchestrator.generations import Ledger
from orchestrator.home import open_home
from orchestrator.supervisor_lock import holder
from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    import sqlite3

    from orchestrator.generations import Generation, Promotion
    from orchestrator.home import Home

POLL = 0.2


def promote(
    candidate: str,
    /,
    *,
    campaign: str | None = None,
    accept: str | None = None,
    wait: bool = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Promote a candidate that a campaign found better than the current generation.

    It is merged by moving `main` of SIA's own repository to exactly the judged commit; the main instance restarts with
    it and is rolled back by itself if it does not hold up. Without a running supervisor it waits for the next start.

    Parameters
    ----------
    candidate
        The candidate as the campaign names it.
    campaign
        Id of the campaign (default: the newest that judged it).
    accept
        A person's reason to promote an equivalent or inconclusive candidate, or one that was rolled back before.
    wait
        Wait until the promotion is decided; exit 1 if it was rolled back or given up.
    """
    from orchestrator import outlook
    from orchestrator.campaign_store import find_judged
    from orchestrator.config import load_settings
    from orchestrator.promotion import promote as promote_judged
    from sandbox.host import Host

    home = open_home()
    settings = load_settings(home.checkout)
    with closing(database.connect(home.database)) as connection:
        if dry_run:
            text = outlook.promotion(home, settings, connection, candidate, campaign, accept=accept)
            return _would(text, as_json=as_json)
        judged = find_judged(connection, candidate, campaign)
        with Host.detect(home.root) as host:
            promotion = promote_judged(
                home,
                settings,
                connection,
                host,
                judged,
                accept=accept,
                report=lambda text: print(text, file=sys.stderr),
            )
        return _conclude(home, connection, promotion, wait=wait, as_json=as_json)


def rollback(
    generation: int | None = None,
    /,
    *,
    with_state: bool = False,
    wait: bool = False,
    dry_run: DryRun = False,
    as_json: Json = False,
) -> int:
    """Go back to an earlier generation, end an open promotion, or leave the safe state.

    Without a number: an open promotion is ended; in the safe state the same generation is tried again; else main goes
    to the good generation before the current one. Without a running supervisor it happens at the next start.

    Parameters
    ----------
    generation
        Its number (`sia generations`).
    with_state
        Also go back to the data of that time. What was written since is kept aside.
    wait
        Wait until it is done; exit 1 if the generation does not hold up.
    """
    from orchestrator import outlook
    from orchestrator.promotion import go_back

    home = open_home()
    with closing(database.connect(home.database)) as connection:
        if dry_run:
            return _would(outlook.rollback(home, connection, generation, with_state=with_state), as_json=as_json)
        ledger = Ledger(connection)
        ended = ledger.standing().promotion
        text = go_back(connection, generation, with_state=with_state)
        print(text, file=sys.stderr)
        begun = ledger.standing().promotion
        if begun is not None and ended is None:
            return _conclude(home, connection, begun, wait=wait, as_json=as_json)
        if ended is not None and wait:
            _waited(home, connection, ended)
        if as_json:
            print(json.dumps({"state": ledger.standing().state, "text": text}))
        return 0


def _would(text: str, *, as_json: bool) -> int:
    print(json.dumps({"dry_run": True, "text": text}) if as_json else text)
    return 0


def generations(*, as_json: Json = False) -> int:
    """Show the ledger: every generation, which one runs, and how each promotion went."""
    home = open_home()
    with closing(database.connect(home.database)) as connection:
        ledger = Ledger(connection)
        standing, all_of_them, promotions = ledger.standing(), ledger.generations(), ledger.promotions()
    if as_json:
        values = {
            "state": standing.state,
            "current": standing.generation.number,
            "last_good": standing.last_good.number,
            "generations": [asdict(generation) for generation in all_of_them],
            "promotions": [asdict(promotion) for promotion in promotions],
        }
        print(json.dumps(values, indent=2))
        return 0
    for generation in all_of_them:
        print(_line(generation, current=standing.generation.number))
    for promotion in promotions:
        print(f"  {promotion_line(asdict(promotion))}")
    return 0


def _line(generation: Generation, *, current: int) -> str:
    mark = "*" if generation.number == current else " "
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(generation.created))
    why = f" · {generation.cause}" if generation.cause else ""
    accepted = f" · accepted: {generation.accepted}" if generation.accepted else ""
    text = f"{generation.number:3} {generation.commit[:12]} {day} {generation.state:5} {generation.candidate}"
    return mark + one_line(text + accepted + why, 300)


def _conclude(home: Home, connection: sqlite3.Connection, promotion: Promotion, *, wait: bool, as_json: bool) -> int:
    if wait:
        promotion = _waited(home, connection, promotion)
    elif holder(home) is None:
        print("no supervisor runs: it waits for the next start (`sia supervise`)", file=sys.stderr)
    if as_json:
        print(json.dumps(asdict(promotion), indent=2))
    else:
        print(promotion_line(asdict(promotion)))
    return 0 if promotion.outcome in (None, "healthy") else 1


def _waited(home: Home, connection: sqlite3.Connection, promotion: Promotion) -> Promotion:
    """The promotion once it is decided. Raises Failed if nobody is there to decide it."""
    ledger = Ledger(connection)
    alone, told = 0, ""
    while (promotion := ledger.promotion(promotion.id)).outcome is None:
        standing = ledger.standing()
        said = f"{standing.state}: {standing.cause or SAYS[standing.state]}"
        if said != told and standing.promotion:
            print(one_line(said, 300), file=sys.stderr)
            told = said
        alone = alone + 1 if holder(home) is None else 0
        if alone > 50:  # ten seconds: longer than restart.sh needs to bring it back
            fix = "start `sia supervise`; the promotion is kept and goes on then"
            raise Failed(f"no supervisor runs, promotion {promotion.id} waits", where=str(home.root), fix=fix)
        time.sleep(POLL)
    return promotion
