"""The overview: instances, campaigns, ledger, events. One cheap `poll` after the other, from one thread."""

from __future__ import annotations

from orchestrator.home import Home
from orchestrator.watch.values import Snapshot

QUIET_AFTER = 30.0  # seconds without an exchange, before an instance is called quiet
STALLED_AFTER = 10.0  # seconds without a word from a living owner
HISTORY = 60  # samples of cpu and tokens that an instance keeps
EVENTS = 2000  # newest events that are held


class Feed:
    """Reads what runs. Not for several threads at once. `close` when done."""

    def __init__(self, home: Home) -> None:
        """Opens nothing yet: a home without a database is fine, and is looked at again in every poll."""
        raise NotImplementedError

    def poll(self) -> Snapshot:
        """The present state. Reads only what changed. Never raises for the state of the files: see `problem`.

        Raises ConfigError when the database was written by a newer SIA.
        """
        raise NotImplementedError

    def close(self) -> None:
        """Release the connections."""
        raise NotImplementedError

    def __enter__(self) -> Feed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
