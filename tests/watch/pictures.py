"""Pictures of every view of the dashboard, at both sizes, always the same: `docs/watch/NAME-COLUMNSxLINES.svg`."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from orchestrator import database
from orchestrator.watch import reading
from orchestrator.watch.values import Supervisor
from tests.watch import sample as samples
from tests.watch.driving import Driver, watching
from tests.watch.sample import Sample

PLACE = Path(__file__).parents[2] / "docs" / "watch"
SIZES = ((80, 24), (200, 60))
WORK = 16  # looks at a fleet that works on, for the curves
STARTED = samples.NOW - 3 * 3600 - 300  # of the supervisor


@dataclass(frozen=True)
class Shot:
    """A view, what it is about (an attribute of the sample), keys, and a text that is there when it is complete."""

    name: str
    view: str
    about: str
    keys: tuple[str, ...]
    text: tuple[str, ...]


SHOTS = (
    Shot("instances", "instances", "", ("j",), ("c0004t30", "q quit")),
    Shot("campaign", "campaign", "current", (), ("inconclusive?",)),
    Shot("campaign-done", "campaign", "done", (), ("disqualified",)),
    Shot("detail", "detail", "hanging", ("tab",), ("read_stdin", "reasoning")),
    Shot("compare", "compare", "pair", (), ("they first part",)),
    Shot("generations", "generations", "", (), ("trim-logs",)),
    Shot("events", "events", "", (), ("started from campaign.toml",)),
    Shot("sandbox", "sandbox", "long", (), ("/app/out/result.txt",)),
    Shot("kill", "instances", "", ("j", "K"), ("or enter: do it",)),
)


@contextmanager
def quiet_sample() -> Iterator[Sample]:
    """The sample without anybody hostile, in UTC; this process and its terminal leave no trace in what is shown."""
    plain = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "SIA_HOME")}
    fixed = plain | {"TZ": "UTC", "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    with ExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="sia-pictures-"))
        stack.callback(time.tzset)
        stack.enter_context(mock.patch.dict(os.environ, fixed, clear=True))
        time.tzset()
        sample = stack.enter_context(samples.build(Path(directory), hostile=False))
        stack.enter_context(
            mock.patch.object(reading, "supervisor", lambda home: Supervisor(4242, STARTED, "supervise"))
        )
        yield sample


def path(shot: Shot, columns: int, lines: int) -> Path:
    """Where a picture lies."""
    return PLACE / f"{shot.name}-{columns}x{lines}.svg"


def take(sample: Sample, shot: Shot, columns: int, lines: int) -> str:
    """One picture, as SVG. The sample is afterwards as it was before."""
    before, now = sample.connection.execute("SELECT * FROM running").fetchall(), sample.clock.now
    try:
        return asyncio.run(_take(sample, shot, columns, lines))
    finally:
        sample.clock.now = now
        with database.transaction(sample.connection):
            sample.connection.execute("DELETE FROM running")
            marks = ", ".join("?" * len(before[0]))
            sample.connection.executemany(f"INSERT INTO running VALUES ({marks})", before)


async def _take(sample: Sample, shot: Shot, columns: int, lines: int) -> str:
    async with watching(sample, shot.view, _about(sample, shot), columns=columns, lines=lines) as driver:
        for _ in range(WORK if shot.view == "instances" else 0):
            sample.tick(0.5)
            await driver.look()
        await driver.press(*shot.keys)
        await driver.until(*shot.text)
        await _settled(driver)
        return driver.picture(f"sia watch {shot.view}")


async def _settled(driver: Driver) -> None:
    """Until the reading threads have brought everything that this view asked them for."""
    text, same = "", 0
    while same < (45 if driver.app.view.TITLE == "campaign" else 20):  # its verdicts come a second after its trials
        await driver.pilot.pause(0.03)
        text, same = (now, same + 1) if (now := driver.text()) == text else (now, 0)


def _about(sample: Sample, shot: Shot) -> str:
    if shot.about != "pair":
        return str(getattr(sample, shot.about)) if shot.about else ""
    query = "SELECT id FROM trial WHERE campaign = ? AND task = 'log-cause' AND repeat = 1 AND arm = ?"
    ids = [sample.connection.execute(query, (sample.done, arm)).fetchone()["id"] for arm in ("baseline", "show-more")]
    return " ".join(ids)
