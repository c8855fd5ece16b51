"""One measured figure, and how commands are timed."""

from __future__ import annotations

import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """`ratio` = measured / yardstick, both medians of one run; it should be ≤ `limit`."""

    name: str
    ratio: float
    limit: float
    yardstick: str
    detail: str = ""

    @property
    def holds(self) -> bool:
        """Whether the ratio is within its limit."""
        return self.ratio <= self.limit


def alternate(runs: int, **work: Callable[[], object]) -> dict[str, float]:
    """Median seconds of each callable, called in turn `runs` times, so that noise of the machine hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(runs):
        for name, call in work.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(values) for name, values in times.items()}


def command(argv: Sequence[str]) -> Callable[[], object]:
    """A callable that runs `argv` silently and raises if it fails."""
    return lambda: subprocess.run(argv, check=True, stdin=subprocess.DEVNULL, capture_output=True)
