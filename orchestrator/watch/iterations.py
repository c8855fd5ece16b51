"""The iterations of one instance, lazily: an index of numbers, texts only of what is looked at."""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from orchestrator.errors import UsageError
from orchestrator.exchanges import ExchangeStore
from orchestrator.home import Home
from orchestrator.journal import Exchange, Journal
from orchestrator.journal_names import find_journal, trial_of
from orchestrator.running import action_name
from orchestrator.trajectory import observed, prompt
from orchestrator.trial_record import ended_as
from orchestrator.untrusted import one_line, printable
from orchestrator.watch import reading
from orchestrator.watch.context_tree import answered_with, readable
from orchestrator.watch.searching import Searcher

TAIL = 256 * 1024  # bytes of stdout and stderr that are shown
SUMMARY = 2000  # characters of an answer that its line is made from
LIVE_BYTES = 8 << 20  # of a live file
Direction = Literal[1, -1]
_SHOWN = re.compile(rb'"kind":"(?:infer|refused)"')
_RESULT = (  # of the attempt that this journal is of
    "SELECT outcome, detail, reward FROM trial"
    " WHERE id = ? AND state = 'done' AND json_extract(record, '$.journal') = ?"
)


@dataclass(frozen=True)
class Line:
    """An iteration in one line. `n` counts from 1 over iterations, `entry` is the exchange's number in the journal.

    `action`: name of the answer's element, `text` its beginning, on one line and harmless. `kind`: infer or refused.
    """

    n: int
    entry: int
    time: float
    kind: str
    action: str
    text: str
    seconds: float
    prompt: int | None
    completion: int | None
    error: str | None


@dataclass(frozen=True)
class Live:
    """What the broker works on now (`.sia/run/live/<id>.json`). Texts are untrusted."""

    n: int  # number of the exchange
    asked: float
    state: str  # asking | answering | working
    context: str
    answer: str


@dataclass(frozen=True)
class Message:
    """Something that was sent to an instance's stdin. `who`: task | person; `time` None = at the start."""

    who: str
    text: str
    time: float | None = None


class Iterations:
    """One instance's journal and streams; of a running or of an ended one. Not for several threads at once.

    n counts iterations (inferences and refused requests) from 1; token counts and the like are left out.
    """

    def __init__(self, home: Home, name: str) -> None:
        """`name`: a trial, its unique beginning, `ID~2` for an attempt, a launch of main, or `main` for its newest.

        Raises UsageError if there is no such journal (an instance that has just been started may not have one yet).
        """
        self._home = home
        store = reading.store(home)
        if store is None:
            fix = "sia campaign run FILE, or sia supervise"
            raise UsageError("nothing has run here yet", where=str(home.root), fix=fix)
        self._store: ExchangeStore = store
        try:
            self._journal = Journal.open(store, find_journal(store, name))
        except BaseException:
            store.close()
            raise
        self._entries = array("L")  # numbers of the exchanges that are shown
        self._last = 0
        self._result = ""
        self._search: Searcher | None = None
        self._live: tuple[float, Live | None] = (0.0, None)
        self.refresh()

    @property
    def id(self) -> str:
        """The journal's id."""
        return self._journal.id

    @property
    def trial(self) -> str | None:
        """The trial that it belongs to; None for the main instance."""
        if self.meta.get("kind") != "trial":
            return None
        return trial_of(self.id)

    @property
    def meta(self) -> dict[str, Any]:
        """What the journal says of itself: kind, campaign, arm, task, repeat, commit, …"""
        return dict(self._journal.meta)

    @property
    def sealed(self) -> bool:
        """Whether no more comes."""
        return self._journal.sealed is not None

    @property
    def result(self) -> str:
        """How a trial ended and what it got, in words; "" until that is stored, and for main."""
        if not self._result and self.sealed and self.trial is not None:
            row = self._store.heads.execute(_RESULT, (self.trial, self.id)).fetchone()
            if row is not None:
                ending = ended_as(row["outcome"], row["detail"], 60)
                reward = "no reward" if row["reward"] is None else f"reward {row['reward']:.3g}"
                self._result = f"{ending}, {reward}"
        return self._result

    @property
    def count(self) -> int:
        """How many iterations there are, as of the last `refresh`."""
        return len(self._entries)

    def refresh(self) -> bool:
        """Look for new ones; returns whether there are."""
        before = self._last
        for stored in self._store.entries(self.id, self._last):
            self._last = stored.n
            if _SHOWN.search(stored.record):
                self._entries.append(stored.n)
        if not self.sealed:
            row = self._store.heads.execute("SELECT sealed FROM journal WHERE id = ?", (self.id,)).fetchone()
            self._journal.sealed = row["sealed"] if row else self._journal.sealed
        return self._last != before

    def line(self, n: int) -> Line:
        """One iteration in a line. Raises IndexError outside 1..count."""
        entry = self._entry(n)
        stored = self._store.get(self.id, entry)
        if stored is None:
            raise IndexError(n)
        record = json.loads(stored.record)
        usage = record["usage"] or {}
        pieces = [bytes.fromhex(name) for name in (record["asked"].get("prefix"), record["reply"]) if name]
        answer = b"".join(self._store.beginning(piece, SUMMARY) for piece in pieces).decode("utf-8", "replace")
        amounts = (usage.get("prompt"), usage.get("completion"))
        return _line(n, entry, record["time"], record["kind"], answer, record["seconds"], amounts, record["error"])

    def line_of(self, exchange: Exchange) -> Line:
        """The same of an exchange that is there already. Raises IndexError if it is no iteration."""
        usage, answer = exchange.usage, exchange.asked.prefix + exchange.reply[:SUMMARY]
        amounts = (usage.prompt, usage.completion) if usage else (None, None)
        about = (exchange.time, exchange.kind, answer, exchange.seconds, amounts, exchange.error)
        return _line(self.position(exchange.n), exchange.n, *about)

    def lines(self, first: int, last: int) -> list[Line]:
        """Those from `first` to `last`, as far as they exist: a window costs what it holds."""
        return [self.line(n) for n in range(max(1, first), min(self.count, last) + 1)]

    def replies(self) -> list[Exchange]:
        """All answered iterations without the requests' texts, and without reading what is not needed."""
        return [one for one in self._journal.replies() if one.kind == "infer" and one.error is None]

    def position(self, entry: int) -> int:
        """The iteration that an exchange's number stands for. Raises IndexError if it is none."""
        place = bisect_left(self._entries, entry)
        if place == len(self._entries) or self._entries[place] != entry:
            raise IndexError(entry)
        return place + 1

    def get(self, n: int) -> Exchange:
        """One iteration with all its texts. Raises IndexError outside 1..count, Failed where a text is damaged."""
        exchange = self._journal.get(self._entry(n))
        if exchange is None:
            raise IndexError(n)
        return exchange

    def effect(self, n: int) -> str | None:
        """What came of it, as readable text: entries of the following context that this one did not show.

        None if there is none yet.
        """
        if n >= self.count:
            return None
        one, two = self.get(n), self.get(n + 1)
        said = answered_with(prompt(one), prompt(two))
        return readable(observed(one, two)) if said is None else said

    def search(
        self, text: str, start: int, direction: Direction = 1, *, stop: Callable[[], bool] | None = None
    ) -> int | None:
        """The next iteration after (or before) `start` whose answer, error, or new part of the context has `text`.

        Upper and lower case are the same (of ASCII). None if there is none, or `stop` said so.
        """
        if not text:
            return None
        if self._search is None or self._search.wanted != text:
            self._search = Searcher(self._store, self.id, text)
        n = start + direction
        while 1 <= n <= self.count:
            if stop is not None and stop():
                return None
            before = self._entries[n - 2] if n > 1 else None
            if self._search.found(self._entries[n - 1], before):
                return n
            n += direction
        return None

    def live(self) -> Live | None:
        """What is asked and answered now. Says to the broker that somebody looks; call it a few times a second."""
        if self.sealed:
            return None
        directory = self._home.run / "live"
        with suppress(OSError):  # without it there is no live view, which is no reason to fail
            directory.mkdir(mode=0o700, exist_ok=True)
            wanted = directory / f"{self._name()}.wanted"
            wanted.touch(mode=0o600)
        path = directory / f"{self._name()}.json"
        try:
            written = path.stat().st_mtime_ns
            if written != self._live[0]:
                self._live = (written, _live(path))
        except OSError:
            self._live = (0.0, None)
        return self._live[1]

    def stdout(self, tail_bytes: int = TAIL) -> str:
        """The end of what the instance wrote for its user, made harmless; "" if there is nothing."""
        return self._stream("stdout", tail_bytes)

    def stderr(self, tail_bytes: int = TAIL) -> str:
        """The end of the agent's own log, made harmless."""
        return self._stream("stderr", tail_bytes)

    def stdin(self) -> tuple[Message, ...]:
        """What was sent to it: the task's instruction and people's messages."""
        if self.trial is None:
            sent, before = reading.tail(self._home.main / "messages.log", TAIL)
            lines = sent.decode("utf-8", "replace").splitlines()[1 if before else 0 :]
            return tuple(Message("person", line) for line in lines)
        query = "SELECT time, text FROM request WHERE kind = 'message' AND subject = ? AND refused = 0 ORDER BY id"
        rows = self._store.heads.execute(query, (self.trial,)).fetchall()
        return (*self._instruction(), *(Message("person", row["text"], row["time"]) for row in rows))

    def close(self) -> None:
        """Release the connections."""
        self._store.close()

    # -- where things lie ---------------------------------------------------------------------------------------------

    def _entry(self, n: int) -> int:
        if not 1 <= n <= len(self._entries):
            raise IndexError(n)
        return self._entries[n - 1]

    def _name(self) -> str:
        """What its live file is called."""
        return self.trial or self.id

    @property
    def directory(self) -> Path:
        """Where its files lie on the host."""
        if self.trial is None:
            return self._home.main
        return self._home.campaigns / str(self.meta.get("campaign")) / "trials" / self.trial

    def _stream(self, name: str, size: int) -> str:
        path = self.directory / f"{name}.txt"
        if self.trial is None:
            path = self._home.main / "stdout.log" if name == "stdout" else self._home.main / name / f"{self.id}.txt"
        data, before = reading.tail(path, size)
        text = printable(data)
        return f"[{before:,} bytes before this are not shown]\n{text}" if before else text

    def _instruction(self) -> tuple[Message, ...]:
        query = "SELECT path FROM campaign_task WHERE campaign = ? AND name = ?"
        values = (str(self.meta.get("campaign")), str(self.meta.get("task")))
        row = self._store.heads.execute(query, values).fetchone()
        places = [Path(row["path"]) / "instruction.md"] if row else []
        for path in (*places, self.directory / "stdin.txt"):  # the task may have been moved since
            with suppress(OSError), path.open("rb") as file:
                return (Message("task", file.read(TAIL).decode("utf-8", "replace")),)
        return ()


def _line(
    n: int,
    entry: int,
    moment: float,
    kind: str,
    answer: str,
    seconds: float,
    tokens: tuple[int | None, int | None],
    error: str | None,
) -> Line:
    failed = None if error is None else one_line(error, 300)
    text = one_line(answer[:SUMMARY], 300)
    return Line(n, entry, moment, kind, action_name(answer), text, seconds, *tokens, failed)


def _live(path: Path) -> Live | None:
    try:
        with path.open("rb") as file:
            values = json.loads(file.read(LIVE_BYTES))
        return Live(
            int(values["n"]),
            float(values["asked"]),
            str(values["state"]),
            str(values.get("context") or ""),
            str(values.get("answer") or ""),
        )
    except (ValueError, KeyError, TypeError):
        return None  # being replaced, or of another version
