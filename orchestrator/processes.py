"""Whether a process that the database names is still that process: process ids are used again."""

from __future__ import annotations

import os
from pathlib import Path

TOLERANCE = 1.5  # seconds between two ways to compute a start time


def started(pid: int) -> float | None:
    """When a process started, in Unix seconds; None if there is no such process (a zombie counts as gone)."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        boot = next(
            int(line.split()[1])
            for line in Path("/proc/stat").read_text(encoding="ascii", errors="replace").splitlines()
            if line.startswith("btime")
        )
    except (OSError, StopIteration):
        return None
    if fields[0] in "ZX":
        return None
    return boot + int(fields[19]) / os.sysconf("SC_CLK_TCK")


def alive(pid: int, since: float) -> bool:
    """Whether the process that started at `since` (`started`, or psutil's create_time) still runs."""
    now = started(pid)
    return now is not None and abs(now - since) <= TOLERANCE
