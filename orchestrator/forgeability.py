"""What `sia task check` found out about a task, kept by the task's content, so that reports can say it later."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from orchestrator import durable
from orchestrator.home import Home

CHECK_VERSION = 1  # raised when the tricks change: older marks are then unknown


@dataclass(frozen=True)
class Mark:
    """`oracle`: the solution gave 1 and nothing gave 0. `forgeable`: names of tricks that won; None = never tried."""

    oracle: bool
    forgeable: tuple[str, ...] | None


def read_mark(home: Home, key: str) -> Mark | None:
    """The mark of the task with this content hash; None if it was never checked (or by an older check)."""
    try:
        values = json.loads(_path(home, key).read_text(encoding="utf-8"))
        if values["version"] != CHECK_VERSION:
            return None
        tricks = values["forgeable"]
        return Mark(bool(values["oracle"]), None if tricks is None else tuple(map(str, tricks)))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_mark(home: Home, key: str, mark: Mark) -> None:
    """Keep a mark. One that tried no tricks does not replace what is known about tricks."""
    known = read_mark(home, key)
    if mark.forgeable is None and known is not None:
        mark = Mark(mark.oracle, known.forgeable)
    path = _path(home, key)
    path.parent.mkdir(parents=True, exist_ok=True)
    durable.write(path, json.dumps({"version": CHECK_VERSION, **asdict(mark)}).encode())


def _path(home: Home, key: str) -> Path:
    return home.root / "task-marks" / f"{key}.json"
