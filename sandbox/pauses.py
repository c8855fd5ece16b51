"""How long something stood still: its clock without its pauses."""

from __future__ import annotations

import time


class Pauses:
    """The pauses of one sandbox, on the monotonic clock. `since`: when the present one began (`wall`: the same in Unix
    seconds); `total`: seconds of the others."""

    def __init__(self) -> None:
        self.since: float | None = None
        self.wall: float | None = None
        self.total = 0.0

    def begin(self) -> None:
        """From now on it stands still."""
        self.since, self.wall = time.monotonic(), time.time()

    def end(self) -> None:
        """It goes on. Nothing happens if it did not stand still."""
        if self.since is not None:
            self.total += time.monotonic() - self.since  # first: nobody may see neither
            self.since = self.wall = None

    def seconds(self, now: float | None = None) -> float:
        """All pauses up to `now`, the present one included."""
        since = self.since
        return self.total + ((now or time.monotonic()) - since if since is not None else 0.0)
