"""One instance in detail: iterations, the context as a tree, the streamed answer, what came of it, what was said."""

from __future__ import annotations

import time
from typing import Any

from rich.text import Text
from textual.app import ComposeResult

from orchestrator.watch.bars import Bar
from orchestrator.watch.detail_reader import WINDOW, DetailNow, DetailReader, Shown
from orchestrator.watch.iteration_rows import IterationRows
from orchestrator.watch.iterations import Direction, Message
from orchestrator.watch.lines import Lines
from orchestrator.watch.panels_overview import instance_head
from orchestrator.watch.panes import Body, Pane, Stack
from orchestrator.watch.sources import Sections, Wrapped, draw
from orchestrator.watch.trees import Tree
from orchestrator.watch.values import Instance, Snapshot
from orchestrator.watch.view import Target, View

NAMES = ("iterations", "context", "answer", "output", "talk", "log")
ITERATIONS, CONTEXT, ANSWER, OUTPUT, TALK, LOG = range(6)
LIVE_EVERY = 0.25
LOW = 30  # lines of a terminal below which the heads are short
ENDED_EVERY = 2.0
NONE = "Choose an instance first: enter on an instance (1) or on a trial of a campaign (2)."


class DetailView(View):
    """Iterations, context (or talk, or log), answer and output: one at a time, on wide terminals side by side."""

    TITLE = "detail"
    ACTIONS = ("previous_iteration", "next_iteration", "next_pane", "kill", "pause", "first_iteration",
               "last_iteration", "fold", "message", "mark", "disk")  # fmt: skip

    def __init__(self) -> None:
        """Made whole at once: news may come before it is composed."""
        super().__init__()
        self.ident = ""
        self.now: DetailNow | None = None
        self.reader: DetailReader | None = None
        self.rows, self.folded = IterationRows(), Tree()
        self.following = True
        self._entry: object = None
        self._shown: Shown | None = None
        self._answer, self._effect, self._log = Wrapped(""), Wrapped(""), Wrapped("")
        self._said = Wrapped("")
        self._said_before: object = None
        self.panes = [
            Lines("detail-iterations", empty=NONE),
            Lines("detail-context", empty="no context yet"),
            Lines("detail-answer", cursor=False, empty="no answer yet"),
            Lines("detail-output", cursor=False, empty="nothing came of it yet"),
            Lines("detail-talk", cursor=False, empty="nothing was said yet", follow=True),
            Lines("detail-log", cursor=False, empty="the agent's own log is empty", follow=True),
        ]

    def compose(self) -> ComposeResult:
        """Six panes under the instance's head."""
        box = [Pane(pane, name) for pane, name in zip(self.panes, NAMES, strict=True)]
        yield Bar("detail-head", lines=0)
        # The order of the tab key is that of `panes`: the stacks name the panes in another one.
        yield Body(
            [
                Stack((box[ITERATIONS],), "46"),
                Stack((box[CONTEXT], box[TALK], box[LOG])),
                Stack((box[ANSWER], box[OUTPUT]), split=True),
            ],
            order=box,
        )

    # -- reading

    def enter(self, ident: str) -> None:
        """An instance, a trial, or `main`."""
        if ident and ident != self.ident:
            self.ident, self.now, self._entry, self._shown, self.following = ident, None, None, None, True
            self.rows, self.folded, self._said_before = IterationRows(), Tree(), None
            self.filter_text = ""
            for pane in self.panes:
                pane.found = ""
                pane.show(Wrapped(""), keep=False)
            self.panes[ITERATIONS].set_empty("looking…")
            old, self.reader = self.reader, DetailReader(self.watch_app.home, ident)
            self._close(old)
        if self.reader is not None:
            self.watch_app.details.every("detail", LIVE_EVERY, self.reader.poll)
        self.pane_changed()

    def leave(self) -> None:
        """No more."""
        self.watch_app.details.drop("detail")
        if self.reader is not None:
            self.reader.stop_search()

    def _close(self, reader: DetailReader | None) -> None:
        if reader is not None:
            reader.stop_search()
            self.watch_app.details.once("close", reader.close)

    def pane_changed(self) -> None:
        """Only what can be seen is read."""
        super().pane_changed()
        if self.reader is not None:
            wide_too = {NAMES[n] for n in (TALK, LOG) if self.panes[n].display and self.panes[n].size.height}
            self.reader.panes = frozenset({NAMES[self.pane_index]} | (wide_too if self.wide else set()))
            self.reader.width = self.room
            self.watch_app.details.hurry("detail")

    def loaded(self, name: str, value: Any, error: BaseException | None) -> None:
        """News of the instance, a window of the list, a match."""
        if name == "detail":
            if error is not None:
                value = DetailNow(self.ident, problem=self.watch_app.words_of(error))
            if value.name == self.ident:
                self._news(value)
        elif name == "lines" and value is not None and value[0] == self.ident:
            self.rows.add(value[1])
            self.panes[ITERATIONS].repaint()
        elif name == "search":
            self._found(value, error)

    def _news(self, now: DetailNow) -> None:
        self.now = now
        if now.problem:
            self.panes[ITERATIONS].set_empty(now.problem)
            return
        self.watch_app.details.pace("detail", ENDED_EVERY if now.sealed else LIVE_EVERY)
        self.panes[ITERATIONS].set_empty("no iteration yet: it has asked nothing so far")
        grown = len(self.rows) != now.count + (now.live is not None) or self.rows.live != now.live
        self.rows.fill(now.count, now.live)
        pane = self.panes[ITERATIONS]
        if grown or pane.source is not self.rows:
            pane.show(self.rows)
            if self.following and len(self.rows):
                pane.go(len(self.rows) - 1)
        self._windows()
        fresh = now.shown is not None and now.shown is not self._shown
        if now.shown is not None and fresh:
            self._shown = now.shown
            self._iteration(now.shown)
        if now.talk is not None and now.talk != self._said_before:
            self._said_before = now.talk
            self._talk(*now.talk)
        if now.log is not None and (now.log != self._log.text or self.panes[LOG].source is not self._log):
            self.panes[LOG].show(self._log.grow(now.log))
        if fresh:
            self.heads()

    def _windows(self) -> None:
        """Read the lines of the list that are seen but not there."""
        missing, reader, ident = self.rows.missing, self.reader, self.ident
        if not missing or reader is None:
            return
        first = max(1, min(missing) - 20)
        last = min(max(missing) + 20, first + WINDOW)
        missing.clear()
        self.watch_app.details.once("lines", lambda: (ident, reader.lines(first, last)))

    def _iteration(self, shown: Shown) -> None:
        fresh = shown.entry != self._entry
        context, answer, output = self.panes[CONTEXT], self.panes[ANSWER], self.panes[OUTPUT]
        if self.folded.root is not shown.context or context.source is not self.folded:
            context.show(self.folded.fill(shown.context), keep=not fresh)
            if fresh:
                context.go(self.folded.first_new())
        streams = shown.entry[0] == "live"
        answer.follow = streams if fresh else answer.follow
        if fresh:
            self._answer, self._effect = Wrapped(shown.answer), Wrapped(shown.effect or "")
        answer.show(self._answer.grow(shown.answer), keep=not fresh)
        output.set_empty(shown.effect_note)
        output.show(self._effect.grow(shown.effect or ""), keep=not fresh)
        self._entry = shown.entry

    def _talk(self, sent: tuple[Message, ...], said: str) -> None:
        parts = []
        for message in sent:
            clock = time.strftime(" %H:%M:%S", time.localtime(message.time)) if message.time else ""
            parts.append((Text(f"→ from the {message.who}{clock}", "bold"), Wrapped(message.text, words=True)))
        if said:
            parts.append((Text("← from the instance", "bold"), self._said.grow(said)))
        self.panes[TALK].show(Sections(parts))

    # -- heads

    def snapshot(self, snapshot: Snapshot) -> None:
        """Its counts and curves."""
        if not self.ident and snapshot.instances:
            self.enter(snapshot.instances[0].id)
        self.heads()

    def instance(self) -> Instance | None:
        """The running instance, if it runs."""
        snapshot = self.watch_app.snapshot
        if snapshot is None:
            return None
        if self.ident == "main":
            return next((one for one in snapshot.instances if one.kind == "main"), None)
        return snapshot.instance(self.ident)

    def heads(self) -> None:
        """The instance, and its iteration."""
        one, width = self.instance(), self.room
        if one is not None:
            lines = draw(instance_head(one, width), width)
        else:
            lines = [Text(f"{self.ident}: does not run now", "bold")] if self.ident else []
        if self.app.size.height < LOW:
            lines = lines[:2]
        if self.now is not None and self.now.shown is not None:
            about = list(self.now.shown.head.split("\n"))
            if one is None and len(about) > 1:
                lines = []  # who it is stands there too
            lines += about[1:] if one is not None and len(about) > 1 else about
        self.put("detail-head", *lines)

    # -- keys

    def moved(self, lines: Lines) -> None:
        """Another iteration under the list's cursor."""
        if lines is self.panes[ITERATIONS] and self.reader is not None and len(self.rows):
            n = lines.cursor + 1
            at_end = n >= len(self.rows)
            self.following = at_end and (self.now is None or not self.now.sealed)
            self.reader.wanted = None if self.following else n
            self.reader.stop_search()
            self.watch_app.details.hurry("detail")
        self._windows()

    def act(self, action: str) -> bool:
        """Iterations from any pane; folding in the context."""
        pane = self.panes[ITERATIONS]
        steps = {"previous_iteration": pane.cursor - 1, "next_iteration": pane.cursor + 1, "first_iteration": 0}
        steps["last_iteration"] = len(self.rows) - 1
        if action in steps:
            pane.go(steps[action])
        elif action == "open":
            if self.pane_index == CONTEXT:
                self._toggle(None)
            else:
                self.focus_pane(CONTEXT)
        elif action == "fold":
            self._toggle(None)
        elif action == "fold_all":
            self.folded.toggle_all()
            self.panes[CONTEXT].show(self.folded)
        elif action in ("left", "right") and self.pane_index == CONTEXT:
            self._toggle(action == "right")
        else:
            done = super().act(action)
            self._windows()
            return done
        self._windows()
        return True

    def _toggle(self, unfold: bool | None) -> None:
        context = self.panes[CONTEXT]
        if self.folded.root is not None:
            n = self.folded.toggle(context.cursor, unfold=unfold)
            context.show(self.folded)
            context.go(n)

    def set_filter(self, text: str, *, done: bool) -> None:
        """Words are marked everywhere; with enter the next iteration that has them is looked for."""
        super().set_filter(text, done=done)
        for pane in self.panes:
            pane.found = text
        if self.pane_index != ITERATIONS:
            self.pane.find(text)
        for pane in self.panes:
            pane.redraw()
        if done and text and self.pane_index == ITERATIONS:
            self.search(1)

    def search(self, direction: int) -> None:
        """In a text: the next place in it. In the list: the next iteration whose texts have the words."""
        text, reader = self.filter_text, self.reader
        if not text or reader is None:
            self.watch_app.say("nothing is searched for: / first")
            return
        if self.pane_index != ITERATIONS:
            if not self.pane.find_next(direction):
                self.watch_app.say(f"«{text}» is not in this text; in the list of iterations (tab) n looks in all")
            return
        start, way = self.panes[ITERATIONS].cursor + 1, _direction(direction)
        reader.stop_search()
        self.watch_app.say(f"searching «{text}» in {len(self.rows)} iterations…")
        ident = self.ident
        self.watch_app.details.once("search", lambda: (ident, text, reader.search(text, start, way)))

    def _found(self, value: tuple[str, str, int | None] | None, error: BaseException | None) -> None:
        if error is not None or value is None:
            self.watch_app.say(self.watch_app.words_of(error), bad=True)
            return
        ident, text, n = value
        if ident != self.ident or text != self.filter_text:
            return
        if n is None:
            self.watch_app.say(f"«{text}» is in no iteration")
        else:
            self.panes[ITERATIONS].go(n - 1, centre=True)
            self.watch_app.say(f"«{text}»: iteration {n}")

    def target(self) -> Target:
        """The instance or trial."""
        one = self.instance()
        if one is not None:
            return Target(one.id, one, one.id if one.kind == "test" else None, one.campaign)
        return Target(self.ident, trial=self.ident or None)

    def live(self) -> list[str]:
        """Steps only while it runs; folding only in the tree."""
        if not self.ident:
            return []
        names = [name for name in self.ACTIONS if name != "fold" or self.pane_index == CONTEXT]
        if self.instance() is None:
            names = [name for name in names if name not in ("kill", "pause", "message")] + ["rerun"]
        return names

    def state(self) -> str:
        """Where in the list."""
        if self.now is None or not len(self.rows):
            return ""
        follows = " following" if self.following and not self.now.sealed else ""
        found = f"/{self.filter_text} " if self.filter_text else ""
        return f"{found}{self.panes[ITERATIONS].cursor + 1} of {len(self.rows)}{follows}"


def _direction(value: int) -> Direction:
    return 1 if value > 0 else -1
