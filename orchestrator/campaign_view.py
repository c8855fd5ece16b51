"""A campaign as it lies in the database, as plain values. Reading never changes or recomputes anything."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import locks
from orchestrator.errors import UsageError

if TYPE_CHECKING:
    from orchestrator.home import Home

BASELINE = "baseline"
DIED = "died"  # `running` is stored, but the process that ran it is gone; one that was asked to stop is `interrupted`
RESUMABLE = ("interrupted", DIED)  # what `sia campaign resume` goes on with


@dataclass(frozen=True)
class ArmRow:
    """The baseline or a candidate. `refused`: why it failed the conformance check, if it did."""

    name: str
    role: str
    proposed: str
    judged: str
    tree: str
    left_out: tuple[str, ...] = ()
    refused: str | None = None


@dataclass(frozen=True)
class TaskRow:
    """A task of the campaign; `key` is the content hash of its directory."""

    name: str
    path: str
    key: str
    split: str


@dataclass(frozen=True)
class TrialRow:
    """A trial; `record` (a `TrialRecord` as a dict) once it is done."""

    id: str
    arm: str
    task: str
    repeat: int
    attempt: int
    position: int
    state: str
    outcome: str | None
    detail: str | None
    reward: float | None
    disqualified: str | None
    started: float | None
    finished: float | None
    record: dict[str, Any] | None


@dataclass(frozen=True)
class CampaignView:
    """All that is stored about one campaign. `verdicts`: `verdict.Verdict` as dicts, by arm; empty until it is done."""

    id: str
    created: float
    finished: float | None
    file: str
    spec: dict[str, Any]
    setup: dict[str, Any]
    baseline: str
    state: str
    error: str | None
    arms: tuple[ArmRow, ...]
    tasks: tuple[TaskRow, ...]
    trials: tuple[TrialRow, ...]
    verdicts: dict[str, dict[str, Any]]
    set_aside: tuple[dict[str, Any], ...] = ()  # earlier results of trials that were run again (`rerun.Attempt`)

    @property
    def candidates(self) -> tuple[ArmRow, ...]:
        """All arms but the baseline, in the order of the file."""
        return tuple(arm for arm in self.arms if arm.name != BASELINE)

    @property
    def unasked(self) -> tuple[str, ...]:
        """Sentences: which checks of the contract an arm could not be asked, since its schema lacks their actions."""
        found = self.setup.get("unasked", {})
        return tuple(f"{arm}: checks of the contract that were not asked: {why}" for arm, why in found.items())

    @property
    def done(self) -> int:
        """Finished trials."""
        return sum(trial.state == "done" for trial in self.trials)

    @property
    def forgeable(self) -> tuple[str, ...]:
        """Tasks whose reward a hostile candidate could forge, as their trials' records say."""
        return self._marked(lambda forgeable: bool(forgeable))

    @property
    def unchecked(self) -> tuple[str, ...]:
        """Tasks on which nobody had tried the tricks, as their trials' records say: forgeable or not is unknown."""
        return self._marked(lambda forgeable: forgeable is None)

    def _marked(self, wanted: Callable[[bool | None], bool]) -> tuple[str, ...]:
        marked = {trial.task for trial in self.trials if trial.record and wanted(trial.record.get("forgeable"))}
        return tuple(task.name for task in self.tasks if task.name in marked)

    def cell(self, arm: str, task: str) -> tuple[TrialRow, ...]:
        """An arm's trials of one task, by repeat."""
        mine = [trial for trial in self.trials if trial.arm == arm and trial.task == task]
        return tuple(sorted(mine, key=lambda trial: trial.repeat))

    def mean_reward(self, arm: str, task: str | None = None) -> float | None:
        """Mean over the rewards so far (of one task); None if there is none."""
        rewards = [
            trial.reward
            for trial in self.trials
            if trial.arm == arm and task in (None, trial.task) and trial.reward is not None
        ]
        return sum(rewards) / len(rewards) if rewards else None

    def to_json(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        return asdict(self)


def lock_path(home: Home, campaign: str) -> Path:
    """Held by the process that runs the campaign (`locks.holder`)."""
    return home.run / f"campaign-{campaign}.lock"


def state_of(home: Home, campaign: str, state: str) -> str:
    """What people are shown: the stored `state`, or DIED."""
    return DIED if state == "running" and locks.holder(lock_path(home, campaign)) is None else state


def resolve(connection: sqlite3.Connection, name: str) -> str:
    """The campaign id that `name` is, or is the unique beginning of; `c7` is `c0007`, `last` the newest one."""
    ids = [row["id"] for row in connection.execute("SELECT id FROM campaign ORDER BY created, id")]
    if name in ids:
        return name
    if name == "last" and ids:
        return str(ids[-1])
    number = name.removeprefix("c")
    matches = [i for i in ids if number.isdecimal() and int(i[1:]) == int(number)] or [
        i for i in ids if name and i.startswith(name)
    ]
    if len(matches) == 1:
        return str(matches[0])
    if matches:
        raise UsageError(f"{name!r} could be {', '.join(matches[:5])}", fix="write more of the id")
    known = f"the newest are {', '.join(ids[:-6:-1])}" if ids else "there is no campaign yet: sia campaign run FILE"
    raise UsageError(f"no campaign {name!r}", fix=known)


def load(connection: sqlite3.Connection, campaign: str) -> CampaignView:
    """Read a campaign by its full id."""
    row = connection.execute("SELECT * FROM campaign WHERE id = ?", (campaign,)).fetchone()
    arms = tuple(
        ArmRow(
            a["name"], a["role"], a["proposed"], a["judged"], a["tree"], tuple(json.loads(a["left_out"])), a["refused"]
        )
        for a in connection.execute("SELECT * FROM arm WHERE campaign = ? ORDER BY rowid", (campaign,))
    )
    tasks = tuple(
        TaskRow(t["name"], t["path"], t["key"], t["split"])
        for t in connection.execute("SELECT * FROM campaign_task WHERE campaign = ? ORDER BY position", (campaign,))
    )
    verdicts = {
        v["arm"]: json.loads(v["numbers"])
        for v in connection.execute("SELECT * FROM verdict WHERE campaign = ?", (campaign,))
    }
    return CampaignView(
        id=row["id"],
        created=row["created"],
        finished=row["finished"],
        file=row["file"],
        spec=json.loads(row["spec"]),
        setup=json.loads(row["setup"]),
        baseline=row["baseline"],
        state=row["state"],
        error=row["error"],
        arms=arms,
        tasks=tasks,
        trials=tuple(_trials(connection, campaign)),
        verdicts={arm.name: verdicts[arm.name] for arm in arms if arm.name in verdicts},
        set_aside=tuple(dict(row) for row in connection.execute(_SET_ASIDE, (campaign,))),
    )


_SET_ASIDE = (
    "SELECT a.trial, a.attempt AS number, a.time, a.why, a.outcome, a.detail FROM trial_attempt a"
    " JOIN trial t ON t.id = a.trial WHERE t.campaign = ? ORDER BY a.time, a.trial, a.attempt"
)


def _trials(connection: sqlite3.Connection, campaign: str) -> Iterator[TrialRow]:
    for row in connection.execute("SELECT * FROM trial WHERE campaign = ? ORDER BY position", (campaign,)):
        values = {key: row[key] for key in row.keys() if key != "campaign"}  # noqa: SIM118 (iterating gives values)
        yield TrialRow(**values | {"record": json.loads(row["record"]) if row["record"] else None})
