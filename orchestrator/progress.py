"""What a person sees while a campaign runs: plain lines, or a live panel on a terminal. Everything goes to stderr."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from orchestrator.trial_record import ended_as
from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    from rich.live import Live

    from orchestrator.broker import Usage
    from orchestrator.plan import PlannedTrial
    from orchestrator.trial import TrialRecord


@dataclass
class Running:
    """A trial at work; `usage` as of its last exchange."""

    trial: PlannedTrial
    since: float  # monotonic
    usage: Usage | None = None


@dataclass
class Board:
    """Where a campaign stands. Written by the runner's threads under `lock`, read for showing."""

    campaign: str
    total: dict[str, int]  # trials by arm
    rewards: dict[str, list[float]] = field(default_factory=dict)
    finished: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    out: dict[str, str] = field(default_factory=dict)  # disqualified arms, and why
    running: dict[str, Running] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def done(self) -> int:
        """Finished trials of all arms, earlier runs of a resumed campaign included."""
        return sum(self.finished.values())

    @property
    def expected(self) -> int:
        """Trials in all; what a disqualified arm has not run will not come."""
        return sum(self.finished[arm] if arm in self.out else count for arm, count in self.total.items())

    def count(self, arm: str, outcome: str, reward: float | None, tokens: int | None) -> None:
        """A trial ended."""
        self.finished[arm] += 1
        self.outcomes[arm, outcome] += 1
        self.tokens[arm] += tokens or 0
        if reward is not None:
            self.rewards.setdefault(arm, []).append(reward)


class Progress:
    """Plain lines: one per finished trial, nothing that moves. Also the interface of the others."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = stream or sys.stderr

    def say(self, text: str) -> None:
        """Prose about what happens."""
        print(text, file=self.stream, flush=True)

    def open(self, board: Board) -> None:
        """The trials begin."""

    def refresh(self, board: Board) -> None:
        """Called a few times a second."""

    def ended(self, board: Board, record: TrialRecord, note: str) -> None:
        """A trial ended; `note` says what follows from it, if anything."""
        self.say(f"[{board.done}/{board.expected}] {describe(record)}{note}")

    def close(self) -> None:
        """No more trials."""


class LivePanel(Progress):
    """A panel that redraws itself; what is worth keeping is printed above it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream)
        from rich.console import Console

        self.console = Console(file=self.stream, highlight=False)
        self._live: Live | None = None

    def say(self, text: str) -> None:
        """Printed above the panel."""
        self.console.print(text, markup=False, soft_wrap=True)

    def open(self, board: Board) -> None:
        """Draw it for the first time."""
        from rich.live import Live

        from orchestrator.panels import running_panel

        self._live = Live(running_panel(board), console=self.console, auto_refresh=False, transient=True)
        self._live.start()

    def refresh(self, board: Board) -> None:
        """Draw it again."""
        from orchestrator.panels import running_panel

        if self._live:
            self._live.update(running_panel(board), refresh=True)

    def ended(self, board: Board, record: TrialRecord, note: str) -> None:
        """Only what a person should know of is kept as a line."""
        if note or record.disqualified or record.outcome in ("invalid", "crashed"):
            self.say(f"{describe(record)}{note}")

    def close(self) -> None:
        """Take the panel away and give the cursor back."""
        if self._live:
            self._live.stop()
            self._live = None


def choose(stream: TextIO | None = None) -> Progress:
    """A live panel on a terminal that can redraw, else plain lines; with NO_COLOR nothing moves either."""
    target = stream or sys.stderr
    moving = target.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM", "dumb") != "dumb"
    return LivePanel(target) if moving else Progress(target)


def describe(record: TrialRecord) -> str:
    """One line about a finished trial."""
    reward = f"reward {record.reward:.3g}" if record.reward is not None else "no reward"
    evidence = f"; DISQUALIFIED: {one_line(record.disqualified, 300)}" if record.disqualified else ""
    who = f"{record.id} {one_line(record.arm)} × {one_line(record.task)} × {record.repeat}"
    spent = f"{record.iterations} iterations, {record.seconds:.1f} s"
    return f"{who}: {ended_as(record.outcome, record.detail)}, {reward}, {spent}{evidence}"
