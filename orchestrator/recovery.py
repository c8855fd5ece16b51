"""What a start of the supervisor repairs: the ledger is right, everything else follows it. Twice equals once."""

from __future__ import annotations

import sqlite3
import time
from typing import TYPE_CHECKING

from orchestrator import data_layers, processes, states
from orchestrator.generations import Ledger
from orchestrator.promotion import ensure_first
from orchestrator.repository import Repository
from orchestrator.saved_input import after_crash
from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    from orchestrator.config import Settings
    from orchestrator.home import Home
    from sandbox.host import Host

REF_FOLLOWS = (states.STABLE, states.STAGED, states.SAFE, states.TRIAL)  # in the others, moving it is a step of its own


def recover(home: Home, settings: Settings, connection: sqlite3.Connection, host: Host) -> None:
    """Bring refs, exports, levels and the table of running instances in line with the ledger.

    Call with the supervisor's lock held and no main instance running. Raises ConfigError where a person is needed
    (a damaged repository), with nothing lost.
    """
    home.main.mkdir(mode=0o711, parents=True, exist_ok=True)
    ensure_first(home, settings, connection)
    ledger = Ledger(connection)
    close_launches(home, connection, ledger)
    forget_dead(connection)
    repository = Repository(home).ensure()
    repair_refs(repository, ledger)
    standing = ledger.standing()
    for generation in {standing.generation.commit, standing.last_good.commit}:
        repository.export(generation, settings.agent.paths, home.generations)
    levels = data_layers.Levels(home)
    join(host, levels, connection)
    data_layers.collect(host, levels, connection)


def join(host: Host, levels: data_layers.Levels, connection: sqlite3.Connection) -> None:
    """Join main's frozen levels where there are many. They hold what an instance wrote: that it can't be copied, or
    does not fit on the disk twice, must not keep main from running on what is there."""
    from sandbox.errors import SiaError

    try:
        data_layers.flatten(host, levels, connection)
    except (SiaError, OSError) as error:
        why = one_line(error.what if isinstance(error, SiaError) else str(error), 300)
        Ledger(connection).event("recovery", "data", f"the layers of main's data could not be joined: {why}")


def close_launches(home: Home, connection: sqlite3.Connection, ledger: Ledger) -> None:
    """Starts of main that the last supervisor did not see the end of: it was killed, and they died with it."""
    rows = connection.execute("SELECT nonce, level FROM launch WHERE finished IS NULL ORDER BY started").fetchall()
    for row in rows:
        if row["level"] == ledger.data().upper:
            ledger.set_offset(after_crash(home, connection, row["nonce"], ledger.data()))
        ledger.end_launch(row["nonce"], None, "the supervisor ended")
        ledger.event("recovery", "main", f"the supervisor ended without a stop while {row['nonce']} ran")


def forget_dead(connection: sqlite3.Connection) -> None:
    """Remove rows of instances whose owner is gone. Main instances belong to whoever holds the lock: to us."""
    for row in connection.execute("SELECT id, kind, supervisor, supervisor_started FROM running").fetchall():
        if row["kind"] == "main" or not processes.alive(row["supervisor"], row["supervisor_started"]):
            connection.execute("DELETE FROM running WHERE id = ?", (row["id"],))


def repair_refs(repository: Repository, ledger: Ledger) -> None:
    """`main` names what the ledger says; generations and bad ones keep refs of their own, so that no commit is lost."""
    standing = ledger.standing()
    head, wanted = repository.head(), standing.generation.commit
    engine_hold = standing.state == states.HOLD and not (standing.cause or "").startswith("ref:")
    if head != wanted and (standing.state in REF_FOLLOWS or engine_hold):
        repository.set_ref(f"refs/sia/stray/{int(time.time())}", head)
        repository.move_main(wanted, head)
        ledger.event("recovery", "ref", f"main was at {head[:12]}, the ledger says {wanted[:12]}: repaired")
    for generation in ledger.generations():
        kind = "bad" if generation.state == "bad" else "generations"
        ref = f"refs/sia/{kind}/{generation.number}"
        if repository.resolve(ref) != generation.commit:
            repository.set_ref(ref, generation.commit)
