"""The reading half of the detail view. Everything here runs in the reading thread, and gives frozen values."""

from __future__ import annotations

from dataclasses import dataclass

from rich.text import Text

from orchestrator.errors import SiaError
from orchestrator.home import Home
from orchestrator.journal import Exchange
from orchestrator.untrusted import printable
from orchestrator.watch.context_tree import Node, tree
from orchestrator.watch.iterations import Direction, Iterations, Line, Live, Message
from orchestrator.watch.panels_detail import head

WINDOW = 150  # lines of the list that are read at once
ENGLISH = {"asking": "the engine is asked", "answering": "the answer comes in", "working": "the agent works"}


@dataclass(frozen=True)
class Shown:
    """One iteration with all that the panes show of it. `entry` tells two iterations apart."""

    n: int
    entry: tuple[str, int, float]
    head: Text
    context: Node
    answer: str
    effect: str | None
    effect_note: str


@dataclass(frozen=True)
class DetailNow:
    """`count` finished iterations; `live` is the one at work, as iteration `count + 1`. `problem` instead of all."""

    name: str
    count: int = 0
    sealed: bool = False
    live: Live | None = None
    shown: Shown | None = None
    talk: tuple[tuple[Message, ...], str] | None = None
    log: str | None = None
    problem: str = ""


class DetailReader:
    """Reads one instance. The screen sets `wanted` (None: the newest) and `panes` (names of what is looked at)."""

    def __init__(self, home: Home, name: str) -> None:
        self.name = name
        self.wanted: int | None = None
        self.panes: frozenset[str] = frozenset()
        self.width = 80
        self._home = home
        self._iterations: Iterations | None = None
        self._shown: Shown | None = None
        self._context: tuple[tuple[str, int, float], Node] | None = None
        self._stop = False

    def poll(self) -> DetailNow:
        """The present state of what is looked at."""
        if self._iterations is None:
            try:
                self._iterations = Iterations(self._home, self.name)
            except SiaError as error:
                return DetailNow(self.name, problem=printable(error.render()))
        its = self._iterations
        its.refresh()
        live = its.live()
        if live is not None and live.state == "working":
            live_row = None
        else:
            live_row = live
        n = self.wanted if self.wanted is not None else its.count + (1 if live_row else 0)
        if live_row is not None and n > its.count:
            shown: Shown | None = self._live(its, live_row)
        else:
            shown = self._ended(its, min(n, its.count)) if its.count else None
        talk = (its.stdin(), its.stdout()) if "talk" in self.panes else None
        log = its.stderr() if "log" in self.panes else None
        return DetailNow(self.name, its.count, its.sealed, live_row, shown, talk, log)

    def lines(self, first: int, last: int) -> list[Line]:
        """A window of the list."""
        return self._iterations.lines(first, last) if self._iterations else []

    def search(self, text: str, start: int, direction: Direction) -> int | None:
        """The next iteration that has the text; around the end once."""
        its = self._iterations
        if its is None:
            return None
        self._stop = False
        found = its.search(text, start, direction, stop=lambda: self._stop)
        if found is None and not self._stop:
            found = its.search(text, 0 if direction == 1 else its.count + 1, direction, stop=lambda: self._stop)
        return found

    def stop_search(self) -> None:
        """From any thread: what is searched for is not wanted any more."""
        self._stop = True

    def close(self) -> None:
        """Release the connections; in the reading thread."""
        if self._iterations is not None:
            self._iterations.close()
            self._iterations = None

    def _ended(self, its: Iterations, n: int) -> Shown:
        last = n == its.count and not its.sealed
        kept = self._shown
        if kept is not None and kept.entry[0] == "ended" and kept.n == n and (kept.effect is not None or last):
            return kept
        exchange = its.get(n)
        effect = its.effect(n)
        note = "" if effect is not None else ("not known yet" if last else "nothing followed")
        context = self._tree(("ended", n, 0.0), _context(exchange), lambda: its.get(n - 1) if n > 1 else None)
        self._shown = Shown(
            n, ("ended", n, 0.0), head(its, n, exchange, self.width), context, _answer(exchange), effect, note
        )
        return self._shown

    def _live(self, its: Iterations, live: Live) -> Shown:
        entry = ("live", live.n, live.asked)
        context = self._tree(entry, live.context, lambda: its.get(its.count) if its.count else None)
        title = Text(f"iteration {its.count + 1}, at work: {ENGLISH.get(live.state, 'busy')}", "bold")
        return Shown(its.count + 1, entry, title, context, printable(live.answer), None, "not known yet")

    def _tree(self, entry: tuple[str, int, float], context: str, before: object) -> Node:
        if self._context is None or self._context[0] != entry:
            earlier = before() if callable(before) else None
            self._context = (entry, tree(context, _context(earlier) if earlier is not None else None))
        return self._context[1]


def _context(exchange: Exchange) -> str:
    asked = exchange.asked
    if asked.context is not None:
        return asked.context
    if asked.turns:
        return "\n\n".join(f"[{turn.role}]\n{turn.text}" for turn in asked.turns)
    return asked.head


def _answer(exchange: Exchange) -> str:
    text = printable(exchange.asked.prefix + exchange.reply)
    if exchange.error is not None:
        text += f"\n\n[ended by an error: {printable(exchange.error)}]"
    return text
