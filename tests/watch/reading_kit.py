"""Small homes for the tests of the reading side: made in milliseconds, changed as their owners would."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from rich.cells import cell_len
from rich.console import Console, RenderableType

from orchestrator import database
from orchestrator.exchanges import ExchangeStore
from orchestrator.generations import Ledger
from orchestrator.home import Home, open_home
from orchestrator.journal import Asked, Exchange, Journal
from orchestrator.processes import started
from orchestrator.protocol import EngineUsage

CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069\ufeff]")


def make_home(directory: Path) -> Home:
    """A home with a database and a first generation."""
    (directory / ".git").mkdir(parents=True)
    home = open_home(directory)
    with closing(database.connect(home.database)) as connection:
        Ledger(connection).found("a" * 40, "tree")
    return home


def run_row(home: Home, id: str, **values: object) -> None:
    """A row of `running`, owned by this process unless said otherwise; written again if it is there."""
    now = time.time()
    owner = started(os.getpid())
    row: dict[str, object] = {
        "id": id,
        "kind": "test",
        "supervisor": os.getpid(),
        "supervisor_started": owner,
        "label": f"task × arm × {id}",
        "state": "running",
        "started": now - 20,
        "iterations": 3,
        "tokens": 100,
        "cost": 0.5,
        "updated": now,
        "journal": id,
        "arm": "arm",
        "task": "task",
        "repeat": 1,
    }
    row |= values
    names = ", ".join(row)
    with closing(database.connect(home.database)) as connection:
        marks = ", ".join("?" * len(row))
        connection.execute(f"INSERT OR REPLACE INTO running ({names}) VALUES ({marks})", tuple(row.values()))


def write_journal(home: Home, id: str, pairs: Iterable[tuple[str, str]], *, seal: bool = True, **meta: object) -> None:
    """A journal of inferences: (context, answer) each."""
    with closing(ExchangeStore(home.exchanges, home.database)) as store:
        journal = Journal.create(store, id, {"kind": "trial", **meta})
        for context, answer in pairs:
            append(journal, context, answer)
        if seal:
            journal.seal()


def append(journal: Journal, context: str, answer: str, kind: str = "infer", error: str | None = None) -> None:
    """One more exchange."""
    asked = Asked(len(context), "0" * 64, "system", "schema", context if kind == "infer" else None, head="")
    usage = EngineUsage(prompt=len(context) // 4, completion=len(answer) // 4, cached=0, cost=None)
    exchange = Exchange(journal.entries + 1, time.time() - 60, kind, asked, answer, 0.25, usage=usage, error=error)  # type: ignore[arg-type]
    journal.append(exchange)


def drawn(shown: RenderableType, width: int, **options: object) -> str:
    """What a terminal without colours shows; checks that no line is too wide and none moves the cursor."""
    console = Console(width=width, color_system=None, legacy_windows=False, highlight=False, **options)  # type: ignore[arg-type]
    with console.capture() as captured:
        console.print(shown)
    text = captured.get()
    for line in text.split("\n"):
        assert cell_len(line) <= width, (width, line)
        assert not CONTROL.search(line), repr(line)
    return text
