"""Time and ids. Both can be fixed, so that a test can expect exact bytes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from datetime import UTC, datetime

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # no i, l, o, u: a model that copies an id confuses them least
_EPOCH = 1_735_689_600  # 2025-01-01T00:00:00Z


class Clock:
    """Wall-clock time in UTC."""

    def now(self) -> datetime:
        """The present time, to the second: a context shows no more."""
        return datetime.now(UTC).replace(microsecond=0)


class FixedClock(Clock):
    """A clock that stands still."""

    def __init__(self, moment: datetime) -> None:
        self._moment = moment

    def now(self) -> datetime:
        """Always the moment it was made with."""
        return self._moment


class IdGenerator(ABC):
    """Gives short opaque ids in the order of time. `last` is saved, so that no id is given twice after a restart."""

    def __init__(self) -> None:
        self.last = 0

    @abstractmethod
    def _candidate(self) -> int:
        """The number that the next id would like to be."""

    def next(self) -> str:
        """A new id, later in sort order than all before."""
        self.last = max(self._candidate(), self.last + 1)
        digits, number = "", self.last
        while number:
            number, digit = divmod(number, 32)
            digits = _ALPHABET[digit] + digits
        return digits.rjust(7, "0")


class TimeIds(IdGenerator):
    """Seven characters that count hundredths of a second; good until the year 2035, then eight."""

    def _candidate(self) -> int:
        return int((time.time() - _EPOCH) * 100)


class SequentialIds(IdGenerator):
    """Ids that count up from a seed."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.last = seed

    def _candidate(self) -> int:
        return self.last + 1


def stamp(moment: datetime) -> str:
    """ISO-8601 in UTC with `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def parse_stamp(text: str) -> datetime:
    """The inverse of `stamp`; ValueError if it is none."""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
