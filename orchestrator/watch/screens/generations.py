"""Generations: the ledger, what each promotion changed, the diff of the code."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult

from orchestrator.ledger_values import Generation, Promotion
from orchestrator.watch.bars import Bar
from orchestrator.watch.generations_feed import GenerationsFeed, GenerationsNow
from orchestrator.watch.lines import Lines
from orchestrator.watch.panels_generations import GENERATIONS, PROMOTIONS, code, head
from orchestrator.watch.panes import Body, Pane, Stack
from orchestrator.watch.sources import Rendered, Wrapped, draw
from orchestrator.watch.tables import Table
from orchestrator.watch.view import Target, View

EMPTY = (
    "There is no generation yet: the first is recorded when main starts or a campaign runs.\n\n"
    "sia supervise                     keep the main instance alive\n"
    "sia campaign run campaign.toml    judge candidates, then promote one (P)"
)
EVERY = 1.0
CODE = 2  # the pane's number


class GenerationsView(View):
    """Generations, promotions, code: one at a time, on wide terminals side by side."""

    TITLE = "generations"
    ACTIONS = ("open", "rollback", "copy", "next_pane")

    def __init__(self) -> None:
        """Made whole at once: news may come before it is composed."""
        super().__init__()
        self.now: GenerationsNow | None = None
        self._feed: GenerationsFeed | None = None
        self._asked: int | None = None
        self.generations: Table[Generation] = Table(
            GENERATIONS, key=lambda row: row.number, words=lambda row: f"{row.number} {row.candidate} {row.state}"
        )
        self.promotions: Table[Promotion] = Table(
            PROMOTIONS, key=lambda row: row.id, words=lambda row: f"{row.id} {row.candidate} {row.outcome} {row.cause}"
        )
        self.panes = [
            Lines("generations-table", empty=EMPTY),
            Lines("promotions-table", empty="No promotion yet: P on a candidate of a finished campaign (2)."),
            Lines("generations-code", cursor=False, empty="the first generation: there is nothing before it"),
        ]

    def compose(self) -> ComposeResult:
        """Three panes."""
        left = (Pane(self.panes[0], "generations"), Pane(self.panes[1], "promotions"))
        yield Bar("generations-head", lines=0)
        yield Body([Stack(left, "2fr", split=True), Stack((Pane(self.panes[CODE], "code"),), "3fr")])

    # -- reading

    def enter(self, ident: str) -> None:
        """Begin to read."""
        self.watch_app.details.every("generations", EVERY, self._poll)

    def leave(self) -> None:
        """No more."""
        self.watch_app.details.drop("generations")
        self.watch_app.details.drop("code")

    def _poll(self) -> GenerationsNow:
        if self._feed is None:
            self._feed = GenerationsFeed(self.watch_app.home)
        return self._feed.poll()

    def loaded(self, name: str, value: Any, error: BaseException | None) -> None:
        """News of the ledger, or a diff."""
        if name == "generations":
            self._news(value, error)
        elif name == "code":
            number, change = value if value is not None else (self._asked, None)
            if number != self._asked:
                return
            pane = self.panes[CODE]
            if error is not None:
                pane.show(Wrapped(self.watch_app.words_of(error)), keep=False)
            else:
                pane.show(Rendered(lambda width: code(change, width)), keep=False)
            self.titled(CODE, f"of generation {number}")

    def _news(self, now: GenerationsNow | None, error: BaseException | None) -> None:
        if now is None:
            self.panes[0].set_empty(self.watch_app.words_of(error))
            return
        if self.now is not None and now.serial == self.now.serial:
            return
        first, self.now = self.now is None, now
        self.heads()
        self.panes[0].show(self.generations.fill(now.generations))
        if first and now.standing is not None:  # what main is, not what was tried last
            numbers = [one.number for one in self.generations.seen]
            self.panes[0].go(numbers.index(now.standing.generation.number))
        self.panes[1].show(self.promotions.fill(now.promotions))
        self._code()

    def _code(self) -> None:
        one = self.selected()
        number = one.number if one else None
        if number is None or number == self._asked:
            return
        self._asked = number
        self.watch_app.details.once("code", lambda: (number, self._change(number)))

    def _change(self, number: int) -> object:
        assert self._feed is not None
        return self._feed.change(number)

    def heads(self) -> None:
        """What main is."""
        if self.now is not None:
            self.put("generations-head", *draw(head(self.now, self.room), self.room))

    # -- keys

    def moved(self, lines: Lines) -> None:
        """The code is that of the generation under the cursor; of a promotion's, where the cursor is on one."""
        if lines is self.panes[0]:
            self._code()
        elif lines is self.panes[1] and self.pane_index == 1:
            promotion = self.promotions.at(lines.cursor)
            if promotion is not None and promotion.new is not None and promotion.kind == "promotion":
                for n, generation in enumerate(self.generations.seen):
                    if generation.number == promotion.new:
                        self.panes[0].go(n)

    def set_filter(self, text: str, *, done: bool) -> None:
        """Fewer generations or promotions; in the code the words are marked."""
        super().set_filter(text, done=done)
        if self.pane_index == 0:
            self.panes[0].show(self.generations.set_filter(text))
        elif self.pane_index == 1:
            self.panes[1].show(self.promotions.set_filter(text))
        else:
            self.panes[CODE].find(text)

    def search(self, direction: int) -> None:
        """In the code."""
        self.panes[CODE].find_next(direction)

    def selected(self) -> Generation | None:
        """The generation under the cursor."""
        return self.generations.at(self.panes[0].cursor)

    def target(self) -> Target:
        """Rolling back goes to it; on the current one it means the one before."""
        one = self.selected()
        if one is None:
            return Target()
        current = self.now is not None and self.now.standing is not None and self.now.standing.generation.number
        return Target(one.commit, generation=None if one.number == current or not current else one.number)

    def live(self) -> list[str]:
        """Without a generation there is nothing to do."""
        return list(self.ACTIONS) if self.generations.total else []

    def act(self, action: str) -> bool:
        """enter goes to the code."""
        if action == "open":
            self.focus_pane(CODE)
            return True
        return super().act(action)
