"""Threads that read. The screen's thread never touches a file or a database: it asks here, and is told.

One thread polls the overview, others serve what may take long, so that a search or a git diff never delays the rest.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SHARE = 4  # a job that took a second rests for four: reading never becomes the main load of a machine
REST = 5.0  # seconds; but never longer than this


@dataclass
class _Job:
    run: Callable[[], Any]
    due: float
    every: float | None


class Reader(threading.Thread):
    """Runs jobs one after the other. A job has a name; asking again under the same name replaces what waits.

    `deliver(name, value, error)` is called in this thread after each run. Nothing that a job raises ends the thread.
    """

    def __init__(self, name: str, deliver: Callable[[str, Any, BaseException | None], None]) -> None:
        super().__init__(name=f"watch-{name}", daemon=True)  # a read that hangs must not keep the program
        self._deliver = deliver
        self._jobs: dict[str, _Job] = {}
        self._wake = threading.Condition()
        self._closed = False
        self._closing: Callable[[], None] = lambda: None

    def once(self, name: str, run: Callable[[], Any]) -> None:
        """Run it as soon as possible."""
        self._put(name, _Job(run, time.monotonic(), None))

    def every(self, name: str, seconds: float, run: Callable[[], Any]) -> None:
        """Run it now, and again `seconds` after each end."""
        self._put(name, _Job(run, time.monotonic(), seconds))

    def pace(self, name: str, seconds: float) -> None:
        """Another rhythm for a repeated job."""
        with self._wake:
            job = self._jobs.get(name)
            if job is not None and job.every is not None and job.every != seconds:
                job.due += seconds - job.every  # (infinity while it runs)
                job.every = seconds
                self._wake.notify()

    def hurry(self, name: str) -> None:
        """Run a repeated job now."""
        with self._wake:
            if name in self._jobs:
                self._jobs[name].due = time.monotonic()
                self._wake.notify()

    def drop(self, name: str) -> None:
        """Forget it; one that runs now still ends and delivers."""
        with self._wake:
            self._jobs.pop(name, None)

    def close(self, last: Callable[[], None] = lambda: None) -> None:
        """End after the job that runs now; `last` is called in the thread (connections belong to it)."""
        with self._wake:
            self._closed, self._closing = True, last
            self._wake.notify()

    def _put(self, name: str, job: _Job) -> None:
        with self._wake:
            self._jobs[name] = job
            self._wake.notify()

    def run(self) -> None:
        """The thread."""
        while (taken := self._next()) is not None:
            name, job = taken
            began = time.monotonic()
            try:
                value, error = job.run(), None
            except Exception as failure:
                value, error = None, failure
            self._again(job, time.monotonic() - began)
            if not self._closed:
                self._deliver(name, value, error)
        self._closing()

    def _next(self) -> tuple[str, _Job] | None:
        with self._wake:
            while not self._closed:
                now = time.monotonic()
                name = min(self._jobs, key=lambda each: self._jobs[each].due, default=None)
                if name is None:
                    self._wake.wait()
                elif (rest := self._jobs[name].due - now) > 0:
                    self._wake.wait(rest)
                else:
                    job = self._jobs[name]
                    if job.every is None:
                        del self._jobs[name]
                    else:
                        job.due = math.inf  # until it has ended
                    return name, job
        return None

    def _again(self, job: _Job, took: float) -> None:
        with self._wake:
            if job.every is not None and job.due == math.inf:  # else somebody hurried it meanwhile
                job.due = time.monotonic() + max(job.every, min(REST, SHARE * took))
