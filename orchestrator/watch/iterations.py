"""The iterations of one instance, lazily: an index of numbers, texts only of what is looked at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from orchestrator.home import Home
from orchestrator.journal import Exchange

TAIL = 256 * 1024  # bytes of stdout and stderr that are shown
Direction = Literal[1, -1]


@dataclass(frozen=True)
class Line:
    """An iteration in one line. `n` counts from 1 over iterations, `entry` is the exchange's number in the journal.

    `action`: name of the answer's element, `text` its beginning, on one line and harmless. `kind`: infer or refused.
    """

    n: int
    entry: int
    time: float
    kind: str
    action: str
    text: str
    seconds: float
    prompt: int | None
    completion: int | None
    error: str | None


@dataclass(frozen=True)
class Live:
    """What the broker works on now (`.sia/run/live/<id>.json`). Texts are untrusted."""

    n: int  # number of the exchange
    asked: float
    state: str  # asking | answering | working
    context: str
    answer: str


@dataclass(frozen=True)
class Message:
    """Something that was sent to an instance's stdin. `who`: task | person; `time` None = at the start."""

    who: str
    text: str
    time: float | None = None


class Iterations:
    """One instance's journal and streams; of a running or of an ended one. Not for several threads at once.

    n counts iterations (inferences and refused requests) from 1; token counts and the like are left out.
    """

    def __init__(self, home: Home, name: str) -> None:
        """`name`: a trial, its unique beginning, `ID~2` for an attempt, a launch of main, or `main` for its newest.

        Raises UsageError if there is no such journal (an instance that has just been started may not have one yet).
        """
        raise NotImplementedError

    @property
    def id(self) -> str:
        """The journal's id."""
        raise NotImplementedError

    @property
    def meta(self) -> dict[str, Any]:
        """What the journal says of itself: kind, campaign, arm, task, repeat, commit, …"""
        raise NotImplementedError

    @property
    def sealed(self) -> bool:
        """Whether no more comes."""
        raise NotImplementedError

    @property
    def count(self) -> int:
        """How many iterations there are, as of the last `refresh`."""
        raise NotImplementedError

    def refresh(self) -> bool:
        """Look for new ones; returns whether there are."""
        raise NotImplementedError

    def line(self, n: int) -> Line:
        """One iteration in a line. Raises IndexError outside 1..count."""
        raise NotImplementedError

    def lines(self, first: int, last: int) -> list[Line]:
        """Those from `first` to `last`, as far as they exist: a window costs what it holds."""
        raise NotImplementedError

    def get(self, n: int) -> Exchange:
        """One iteration with all its texts. Raises IndexError outside 1..count, Failed where a text is damaged."""
        raise NotImplementedError

    def effect(self, n: int) -> str | None:
        """What came of it: entries of the following context that this one did not show; None if there is none yet."""
        raise NotImplementedError

    def search(
        self, text: str, start: int, direction: Direction = 1, *, stop: Callable[[], bool] | None = None
    ) -> int | None:
        """The next iteration after (or before) `start` whose answer, error, or new part of the context has `text`.

        Upper and lower case are the same (of ASCII). None if there is none, or `stop` said so.
        """
        raise NotImplementedError

    def live(self) -> Live | None:
        """What is asked and answered now. Says to the broker that somebody looks; call it a few times a second."""
        raise NotImplementedError

    def stdout(self, tail_bytes: int = TAIL) -> str:
        """The end of what the instance wrote for its user, made harmless; "" if there is nothing."""
        raise NotImplementedError

    def stderr(self, tail_bytes: int = TAIL) -> str:
        """The end of the agent's own log, made harmless."""
        raise NotImplementedError

    def stdin(self) -> tuple[Message, ...]:
        """What was sent to it: the task's instruction and people's messages."""
        raise NotImplementedError

    def close(self) -> None:
        """Release the connections."""
        raise NotImplementedError
