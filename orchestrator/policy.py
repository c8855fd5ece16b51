"""Policy `auto`: promote what a campaign found better, without a person, in a thread beside the supervisor's loop."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING

from orchestrator import database, states
from orchestrator.campaign_store import find_judged
from orchestrator.errors import SiaError
from orchestrator.generations import Ledger, Standing
from orchestrator.promotion import find_better, promote

if TYPE_CHECKING:
    from orchestrator.config import Settings
    from orchestrator.home import Home
    from sandbox.host import Host


class AutoPolicy:
    """Looks for `better` verdicts against the current generation and stages them, one at a time."""

    def __init__(self, home: Home, settings: Settings, host: Host) -> None:
        self._home, self._settings, self._host = home, settings, host
        self._thread: threading.Thread | None = None
        self._refused: set[tuple[str, str]] = set()

    def look(self, connection: sqlite3.Connection, standing: Standing) -> None:
        """Start promoting if there is something; approve what was staged before a kill. Returns at once."""
        if self._settings.promotion.policy != "auto" or (self._thread and self._thread.is_alive()):
            return
        if standing.state == states.STAGED and standing.promotion and standing.promotion.accepted is None:
            Ledger(connection).approve("policy")
        elif standing.state == states.STABLE and not standing.probation:
            found = find_better(connection)
            if found and found not in self._refused:
                self._thread = threading.Thread(target=self._promote, args=found, name="auto-policy", daemon=True)
                self._thread.start()

    def close(self) -> None:
        """Wait for the thread; its work is whole or not there."""
        if self._thread:
            self._thread.join()

    def _promote(self, candidate: str, campaign: str) -> None:
        with closing(database.connect(self._home.database)) as connection:
            try:
                judged = find_judged(connection, candidate, campaign)
                promote(self._home, self._settings, connection, self._host, judged, by="policy")
            except (SiaError, states.IllegalMove, OSError, sqlite3.Error) as error:
                self._refused.add((candidate, campaign))  # until the next start: never again and again
                with suppress(sqlite3.Error):
                    Ledger(connection).event("promotion", candidate, f"not promoted by policy: {error}")
