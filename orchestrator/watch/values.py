"""What the feeds give: frozen values. Times are Unix seconds, durations seconds, sizes as the names say.

Texts are as they were stored, so untrusted: the panels make them harmless (`orchestrator.untrusted`). What nobody knows
is None, never 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Supervisor:
    """The process that keeps the main instance alive."""

    pid: int
    since: float
    command: str


@dataclass(frozen=True)
class LedgerNow:
    """What main is (`ledger` joined with `generation`)."""

    state: str
    generation: int
    candidate: str
    commit: str
    last_good: int
    probation: bool
    crashes: int
    cause: str | None


@dataclass(frozen=True)
class PromotionLine:
    """A promotion or rollback: the open one, or one of the last. `outcome` None = open."""

    id: int
    kind: str
    candidate: str
    old: int
    new: int | None
    new_commit: str
    tries: int
    launches: int
    outcome: str | None
    cause: str | None
    created: float
    finished: float | None

    @property
    def open(self) -> bool:
        """Whether it is not decided yet."""
        return self.outcome is None


@dataclass(frozen=True)
class Instance:
    """A running instance. `state` is one of these, or the owner's own word (`boot 2`, `verifying`, `stalled` …):

    running · starting (nothing was asked yet) · paused · quiet (no exchange has ended for `feed.QUIET_AFTER` seconds) ·
    waiting (the same, of a main instance that reads its input) · stale (its owner lives but has written nothing for a
    while, so the numbers are old) · orphan (its owner is gone).
    """

    id: str
    kind: str  # main | test
    label: str
    candidate: str | None  # the arm; of main: the generation's label
    task: str | None
    repeat: int | None
    campaign: str | None
    state: str
    said: str  # the owner's own word for the state
    iteration: int
    last_action: str | None
    tokens: int
    cost: float | None
    cpu_percent: float | None  # of one core, between the owner's last two writes; at first since its start
    memory_mb: float | None
    disk_mb: float | None
    elapsed: float  # since it was started, pauses left out
    limit: float | None  # wall clock seconds that it may take; None = no limit
    quiet: float | None  # since its last exchange ended; None where nobody knows
    started: float
    updated: float  # when its owner wrote the row
    paused_since: float | None
    directory: Path | None
    journal: str
    owner: int  # process id
    cpu_history: tuple[float, ...] = ()  # percent, oldest first, one for each second or so
    token_history: tuple[float, ...] = ()  # tokens per second, the same

    @property
    def used(self) -> float | None:
        """Part of the time limit that is used, 0 to 1 and above; None without a limit."""
        return self.elapsed / self.limit if self.limit else None


@dataclass(frozen=True)
class CampaignLine:
    """A campaign in one line. `state` is `stopped` where the process that ran it is gone. `trials` leaves out those
    that will not be run, since their candidate is disqualified."""

    id: str
    state: str
    file: str
    created: float
    finished: float | None
    trials: int
    done: int
    running: int
    error: str | None
    verdicts: tuple[tuple[str, str], ...]  # (candidate, verdict)


@dataclass(frozen=True)
class Event:
    """Something that happened; `id` grows with time."""

    id: int
    time: float
    kind: str
    subject: str
    text: str


@dataclass(frozen=True)
class OrphanLine:
    """What a killed owner left; the next start clears it."""

    kind: str  # instance | process | mount | group | socket | layers
    what: str


@dataclass(frozen=True)
class RequestLine:
    """A step that a person asked for. `result` None = not answered yet."""

    id: int
    time: float
    kind: str
    subject: str
    text: str
    asked_by: str
    taken: float | None
    refused: bool
    result: str | None


@dataclass(frozen=True)
class Snapshot:
    """Everything that the overview shows, as of `time`. `serial` grows whenever something but the clock changed.

    `problem`: why nothing could be read (the rest is then the last that could be), else None. `checkout` is where the
    user's files lie.
    """

    serial: int
    time: float
    home: Path
    checkout: Path
    supervisor: Supervisor | None
    ledger: LedgerNow | None
    promotions: tuple[PromotionLine, ...]
    instances: tuple[Instance, ...]
    campaigns: tuple[CampaignLine, ...]  # newest first
    events: tuple[Event, ...]  # newest last
    orphans: tuple[OrphanLine, ...]
    requests: tuple[RequestLine, ...] = ()  # unanswered ones, and those answered in the last minute
    problem: str | None = None

    def instance(self, id: str) -> Instance | None:
        """The running instance with this id."""
        return next((one for one in self.instances if one.id == id), None)


@dataclass(frozen=True)
class Left:
    """What a campaign still takes, estimated from what its trials took so far. None = can't be told yet."""

    seconds: float | None
    cost: float | None
    tokens: float | None


@dataclass(frozen=True)
class SoFar:
    """A running verdict: the same test as at the end, over the rounds (task, repeat) that all arms have finished.

    It is looked at often and decides nothing; `numbers` is a `verdict.Verdict` as a dict.
    """

    arm: str
    rounds: int
    numbers: dict[str, Any]
