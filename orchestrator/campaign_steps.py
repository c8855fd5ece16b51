"""How people step in with a running campaign and its trials, and what they see of it: the runner's side."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from orchestrator.desk import Desk
from orchestrator.errors import Failed
from orchestrator.live import LiveFiles
from orchestrator.requests import Request
from orchestrator.running import RunningRows
from orchestrator.trial_control import TrialControl

if TYPE_CHECKING:
    from orchestrator.campaign_runner import Runner
    from orchestrator.captured import Stop


class TrialSteps:
    """Of one runner. `look` is called in its loop a few times a second."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._since = time.time()
        self._controls: dict[str, TrialControl] = {}
        self._lock = threading.Lock()
        self._rows = RunningRows()
        self._live = LiveFiles(runner.context.home)
        self._desk = Desk(runner.store.requests, runner.store.answer, self._act)

    @contextmanager
    def steering(self, trial: str, stop: Stop) -> Iterator[TrialControl]:
        """A trial runs while the block does."""
        control = TrialControl(stop)
        with self._lock:
            self._controls[trial] = control
        try:
            yield control
        finally:
            control.over()
            with self._lock:
                del self._controls[trial]

    def look(self) -> None:
        """Take what is asked, store what was done and what the trials do. Raises ConfigError if it can't be stored."""
        with self._lock:
            controls = dict(self._controls)
        self._desk.look({self._runner.id: self._since} | {id: control.since for id, control in controls.items()})
        self._live.look({id: live for id, control in controls.items() if (live := control.live)})
        if controls and self._rows.due():
            news = self._rows.changed({id: control.now() for id, control in controls.items()})
            if news:
                self._runner.store.progress(news)

    def close(self) -> None:
        """The runner ends."""
        self._desk.close()
        self._live.close()

    def _act(self, request: Request) -> str:
        if request.kind == "stop_campaign":
            return self._stop(request.asked_by)
        with self._lock:
            control = self._controls.get(request.subject)
        if control is None:
            raise Failed("it has just ended")
        if request.kind == "message":
            return control.message(request.text)
        return {"kill": control.kill, "pause": control.pause, "resume": control.resume}[request.kind]()

    def _stop(self, who: str) -> str:
        runner = self._runner
        if runner.stop_by(who):
            running = len(self._controls)
            self._say(f"stopping, asked by {who}: no more trials start, {running} at work are finished")
            return f"no more trials start; {running} at work are finished first"
        self._say(f"stopping, asked by {who} once more: trials at work are ended")
        return "trials at work are ended; they run again after a resume"

    def _say(self, text: str) -> None:
        with self._runner.board.lock:  # as all other lines of a running campaign
            self._runner.progress.say(text)
