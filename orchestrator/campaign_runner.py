"""Runs a campaign's planned trials, N at a time, and stores each result as it ends.

One thread per trial at work; the caller's thread shows progress, keeps `running` rows fresh and takes signals. Limits
are enforced by the trial itself from outside the instance, so a thread here always comes back.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from orchestrator.campaign_steps import TrialSteps
from orchestrator.campaign_view import BASELINE
from orchestrator.errors import Failed, SiaError
from orchestrator.plan import MAX_RETRIES, PlannedTrial
from orchestrator.progress import Board, Progress, Running
from orchestrator.trial import Stopped, TrialContext, TrialRecord, TrialSpec, run_trial
from orchestrator.trial_ending import trial_limits

if TYPE_CHECKING:
    from orchestrator.agent_build import AgentBuild
    from orchestrator.broker import Usage
    from orchestrator.campaign_store import CampaignStore
    from orchestrator.config import Campaign
    from orchestrator.task_files import TaskFiles

REFRESH = 0.25  # seconds between looks at the board
OUTAGE = 8  # invalid trials in a row, the baseline's among them: something of ours is broken for all


@dataclass
class Waiting:
    """A trial that has to run; `attempt` counts from 1."""

    trial: PlannedTrial
    attempt: int = 1


class Runner:
    """Runs what is planned. After `run`, `error` says what stopped it early (None: nothing, or `stop` was set)."""

    def __init__(
        self,
        *,
        id: str,
        campaign: Campaign,
        context: TrialContext,
        store: CampaignStore,
        directory: Path,
        builds: dict[str, AgentBuild],
        trees: dict[str, str],
        tasks: dict[str, TaskFiles],
        parallel: int,
        board: Board,
        progress: Progress,
        stop: threading.Event,
    ) -> None:
        self.id, self.campaign, self.context, self.store = id, campaign, context, store
        self.directory, self.builds, self.trees, self.tasks = directory, builds, trees, tasks
        self.parallel, self.board, self.progress = parallel, board, progress
        self.stop = stop  # set by a signal or by what makes going on useless
        self.error: SiaError | None = None
        self.stopped_by: str | None = None  # the person who asked it to start no more trials
        self.steps = TrialSteps(self)
        self._wake = threading.Event()
        self._changed = threading.Condition(board.lock)
        self._queue: deque[Waiting] = deque()
        self._streak: dict[str, str] = {}  # trials that ended invalid since the last one that did not, with their arm

    def run(self, waiting: Iterable[Waiting]) -> None:
        """Run all of them; returns when they are stored, or when `stop` is set and all that ran is cleaned up."""
        self._queue.extend(waiting)
        count = max(1, min(self.parallel, len(self._queue)))
        threads = [threading.Thread(target=self._work, name=f"trial-{n}", daemon=True) for n in range(count)]
        self.progress.open(self.board)
        try:
            for thread in threads:
                thread.start()
            self._watch(threads)
        finally:
            self.steps.close()
            self.progress.close()

    def _watch(self, threads: list[threading.Thread]) -> None:
        while any(thread.is_alive() for thread in threads):
            self._wake.wait(REFRESH)
            if self.stop.is_set():
                time.sleep(0.02)  # the event stays set; do not spin while the threads clean up
                with self._changed:
                    self._changed.notify_all()
            else:
                self._wake.clear()
            with self.board.lock:
                self.progress.refresh(self.board)
            try:
                self.steps.look()
            except SiaError as error:
                self._give_up(error)

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            trial = waiting.trial
            try:
                self._run(waiting)
            except Stopped:
                self._unfinished(trial, "the campaign was stopped" if self.error is None else None)
            except SiaError as error:
                self._unfinished(trial, error.what)
                self._give_up(error)
            except Exception as error:  # a fault of this program: never an instance's result
                self._unfinished(trial, f"internal error: {type(error).__name__}")
                where = f"trial {trial.id}"
                fix = "please report this; finished trials are kept, `sia campaign resume` goes on"
                self._give_up(Failed(f"internal error: {type(error).__name__}: {error}", where=where, fix=fix))
            finally:
                with self._changed:
                    self.board.running.pop(trial.id, None)
                    self._changed.notify_all()
                self._wake.set()

    def _next(self) -> Waiting | None:
        """The next trial to run. While others run, one of them may still have to be tried again: wait for that."""
        with self._changed:
            while not self.stop.is_set() and self.stopped_by is None:
                while self._queue and self._queue[0].trial.arm in self.board.out:
                    self._queue.popleft()
                if self._queue:
                    waiting = self._queue.popleft()
                    self.board.running[waiting.trial.id] = Running(waiting.trial, time.monotonic())
                    return waiting
                if not self.board.running:
                    return None
                self._changed.wait()
            return None

    def _run(self, waiting: Waiting) -> None:
        trial = waiting.trial
        directory = self.directory / "trials" / trial.id
        self.context.host.remove(directory)  # of a run that was cut off
        limits, task = self.campaign.limits, self.tasks[trial.task]
        label = f"{trial.task} × {trial.arm} × {trial.repeat}"
        self.store.start_trial(trial.id, label, trial_limits(limits, task.task).seconds)
        with self.steps.steering(trial.id, self.stop) as control:
            spec = TrialSpec(
                id=trial.id,
                campaign=self.id,
                arm=trial.arm,
                build=self.builds[trial.arm],
                task=task,
                repeat=trial.repeat,
                seed=self.campaign.seed,
                limits=limits,
                directory=directory,
                stop=self.stop,
                progress=lambda usage: self._used(trial.id, usage),
                control=control,
            )
            record = run_trial(self.context, spec)
        if self.stop.is_set():
            raise Stopped  # what the stop itself did to the trial can't be told from what the agent did
        if record.tree != self.trees[trial.arm]:
            what = f"the tree that ran is {record.tree[:12]}, to be judged is {self.trees[trial.arm][:12]}"
            fix = f"remove {self.builds[trial.arm].export}, which is made again: sia campaign resume {self.id}"
            raise Failed(what, where=f"trial {trial.id}", fix=fix)
        self._ended(waiting, record)

    def _used(self, id: str, usage: Usage) -> None:
        running = self.board.running.get(id)
        if running is not None:
            running.usage = usage

    def _ended(self, waiting: Waiting, record: TrialRecord) -> None:
        again = waiting.attempt <= MAX_RETRIES and not (record.disqualified or record.excluded)
        retry = record.outcome == "invalid" and again
        self.store.finish_trial(record, retry=retry)
        with self._changed:
            note = self._consequences(waiting, record, retry)
            if not retry:
                self.board.count(record.arm, record.outcome, record.reward, record.tokens)
            self.progress.ended(self.board, record, note)
        if len(self._streak) >= OUTAGE and BASELINE in self._streak.values():
            self.store.plan_again(self._streak)
            self._give_up(
                Failed(
                    f"{len(self._streak)} trials in a row could not be run, the last one because: {record.detail}",
                    where=f"campaign {self.id}",
                    fix=f"mend the cause, then `sia campaign resume {self.id}`; these trials do not count",
                )
            )

    def _consequences(self, waiting: Waiting, record: TrialRecord, retry: bool) -> str:
        """What follows for the others; returns it in words."""
        if record.excluded:
            pass  # says nothing about us or about it
        elif record.outcome == "invalid":
            self._streak[record.id] = record.arm
        else:
            self._streak.clear()
        if record.disqualified and record.arm == BASELINE:
            self.stop.set()
            return "; the campaign can't go on"
        if record.disqualified and record.arm not in self.board.out:
            self.board.out[record.arm] = record.disqualified
            return "; its other trials are not run"
        if retry:
            self._queue.append(Waiting(waiting.trial, waiting.attempt + 1))  # last: what broke may be mended by then
            return f"; will be tried again ({waiting.attempt} of {MAX_RETRIES})"
        return ""

    def stop_by(self, who: str) -> bool:
        """A person wants it to stop: no more trials start. Asked again, those at work are ended. Returns whether this
        was the first time. From any thread."""
        with self._changed:
            first = self.stopped_by is None
            self.stopped_by = self.stopped_by or who
            self._changed.notify_all()
        if not first:
            self.stop.set()
        self._wake.set()
        return first

    def _unfinished(self, trial: PlannedTrial, cut_off: str | None) -> None:
        """It runs again later. `cut_off`: why, if it was by a person's choice or may have been by the instance's: then
        the verdicts tell of it, lest a trial that is being lost could be undone unseen."""
        try:
            self.context.host.remove(self.directory / "trials" / trial.id)
            if cut_off:
                self.store.cut_off(trial.id, cut_off)
            else:
                self.store.plan_again([trial.id])
        except (SiaError, OSError):
            pass  # the row stays `running`, and a resume plans it again

    def _give_up(self, error: SiaError) -> None:
        with self.board.lock:
            self.error = self.error or error
        self.stop.set()
        self._wake.set()
