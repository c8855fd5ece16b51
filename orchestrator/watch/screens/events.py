"""Events: what happened, newest last, and what was asked for."""

from __future__ import annotations

from rich.text import Text
from textual.app import ComposeResult

from orchestrator.watch.bars import Bar
from orchestrator.watch.columns import line, place
from orchestrator.watch.lines import Lines
from orchestrator.watch.panels_events import EVENTS, REQUESTS
from orchestrator.watch.tables import Table
from orchestrator.watch.values import Event, Snapshot
from orchestrator.watch.view import Target, View

EMPTY = "Nothing has happened yet. Campaigns, promotions and what people ask for leave their events here."


STEPS = 4  # of the last minute that are shown


class EventsView(View):
    """A log that grows at its end."""

    TITLE = "events"
    ACTIONS = ("open", "bottom", "top")

    def __init__(self) -> None:
        """Made whole at once: news may come before it is composed."""
        super().__init__()
        self.table: Table[Event] = Table(
            EVENTS, key=lambda row: row.id, words=lambda row: f"{row.kind} {row.subject} {row.text}"
        )
        lines = Lines("events-table", empty=EMPTY, follow=True)
        self.panes = [lines]

    def compose(self) -> ComposeResult:
        """A table that stays at its end until the cursor is moved."""
        yield self.pane
        yield Bar("events-steps", lines=0)

    def snapshot(self, snapshot: Snapshot) -> None:
        """New events."""
        self.table.fill(snapshot.events)
        none = f"no event has «{self.filter_text}» (esc drops the filter)" if snapshot.events else EMPTY
        self.pane.set_empty(none)
        self.pane.show(self.table)
        self.heads()

    def heads(self) -> None:
        """Steps that people asked for in the last minute."""
        snapshot = self.watch_app.snapshot
        asked = snapshot.requests[-STEPS:] if snapshot is not None else ()
        placed = place(REQUESTS, self.room)
        lines = [line([each.render(one) for each in placed]) for one in asked]
        title = [Text(" steps that people asked for", "bold underline")] if lines else []
        self.put("events-steps", *title, *lines)

    def set_filter(self, text: str, *, done: bool) -> None:
        """Fewer lines."""
        super().set_filter(text, done=done)
        self.table.set_filter(text)
        self.pane.follow = True
        if self.watch_app.snapshot is not None:
            self.snapshot(self.watch_app.snapshot)

    def selected(self) -> Event | None:
        """The event under the cursor."""
        return self.table.at(self.pane.cursor)

    def target(self) -> Target:
        """Its subject can be copied."""
        event = self.selected()
        return Target(event.subject) if event else Target()

    def act(self, action: str) -> bool:
        """enter shows the whole text."""
        event = self.selected()
        if action == "open" and event is not None:
            self.watch_app.show_event(event)
            return True
        handled = super().act(action)
        if action == "bottom":
            self.pane.follow = True
        return handled

    def live(self) -> list[str]:
        """Nothing to open in an empty list."""
        return list(self.ACTIONS) if len(self.table) else []

    def state(self) -> str:
        """How many; whether new ones scroll in."""
        shown = f"/{self.filter_text} {len(self.table)} of {self.table.total}" if self.filter_text else ""
        return shown or f"{self.table.total} events"
