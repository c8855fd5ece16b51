"""What all views have: panes of lines, one of which gets the keys, and what the steps would be about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.text import Text
from textual.containers import Vertical

from orchestrator.watch.bars import Bar
from orchestrator.watch.lines import Lines
from orchestrator.watch.panes import Body
from orchestrator.watch.tables import Table
from orchestrator.watch.values import Instance, Snapshot

if TYPE_CHECKING:
    from orchestrator.watch.app import WatchApp

WIDE = 140  # columns from which panes lie side by side


@dataclass(frozen=True)
class Target:
    """What a step would be about: what the cursor is on. `name` is for the clipboard."""

    name: str = ""
    instance: Instance | None = None
    trial: str | None = None
    campaign: str | None = None
    candidate: str | None = None
    verdict: str | None = None
    generation: int | None = None


class View(Vertical):
    """A view. Subclasses fill `panes` in `compose`; the application calls the rest."""

    DEFAULT_CSS = """
    View { height: 1fr; width: 1fr; }
    """
    TITLE = ""
    ACTIONS: Sequence[str] = ()  # what it offers besides moving; `live` may take some away

    def __init__(self) -> None:
        super().__init__(id=f"view-{self.TITLE}")
        self.panes: list[Lines] = []
        self.pane_index = 0
        self.filter_text = ""

    @property
    def watch_app(self) -> WatchApp:
        """The application, with its type."""
        from orchestrator.watch.app import WatchApp

        assert isinstance(self.app, WatchApp)
        return self.app

    @property
    def pane(self) -> Lines:
        """The pane that gets the keys."""
        return self.panes[self.pane_index]

    # -- called by the application

    def enter(self, ident: str) -> None:
        """It is shown now, about `ident` (may be empty)."""

    def leave(self) -> None:
        """It is not shown any more: stop reading."""

    def snapshot(self, snapshot: Snapshot) -> None:
        """The overview has news (only while it is shown)."""

    def loaded(self, name: str, value: Any, error: BaseException | None) -> None:
        """A reading job of this view has ended."""

    def target(self) -> Target:
        """What the cursor is on."""
        return Target()

    def live(self) -> list[str]:
        """Names of the actions that do something now, the most important first."""
        return list(self.ACTIONS)

    def set_filter(self, text: str, *, done: bool) -> None:
        """Words were typed; `done` when with enter. Tables show fewer lines; texts search."""
        self.filter_text = text

    def search(self, direction: int) -> None:
        """Next or previous match."""

    def act(self, action: str) -> bool:
        """Carry out an action; False if it is none of this view's."""
        if action == "next_pane":
            return self._turn(1)
        if action == "previous_pane":
            return self._turn(-1)
        return self.pane.act(action)

    def order(self, action: str, table: Table[Any], pane: Lines, own: str) -> bool:
        """Carry out `sort` or `reverse` on a table that `pane` shows; False for another action. `own`: words for the
        rows' own order."""
        if action == "sort":
            title = table.sort_next()
            self.watch_app.say(f"sorted by {title}" if title else own)
        elif action == "reverse":
            table.flip()
        else:
            return False
        pane.show(table)
        return True

    def state(self) -> str:
        """What stands at the right end of the tabs: filter, order, counts."""
        return f"/{self.filter_text}" if self.filter_text else ""

    # -- panes

    def focus_pane(self, index: int) -> None:
        """Keys go to this pane."""
        self.pane_index = index % len(self.panes)
        for number, pane in enumerate(self.panes):
            pane.set_active(number == self.pane_index)
        self.pane_changed()

    def pane_changed(self) -> None:
        """Another pane is active, or the room is another."""
        for body in self.query(Body):
            body.lay_out(self.pane_index, wide=self.wide)

    @property
    def wide(self) -> bool:
        """Whether panes lie side by side."""
        return self.app.size.width >= WIDE

    @property
    def room(self) -> int:
        """Columns that the view has; also before it is laid out for the first time."""
        return self.size.width or self.app.size.width

    def heads(self) -> None:
        """Draw the lines above the panes, as wide as there is room."""

    def put(self, bar: str, *lines: Text) -> None:
        """Lines above the panes. News may come before the view is composed, or while it is taken down: then nowhere."""
        for found in self.query(f"#{bar}").results(Bar):
            found.put(*lines)

    def on_resize(self) -> None:
        """Room for more or fewer panes."""
        self.heads()
        self.pane_changed()

    def titled(self, index: int, extra: str) -> None:
        """Words behind a pane's title."""
        for body in self.query(Body):
            pane = body.all[index]
            if pane.extra != extra:
                pane.extra = extra
                self.pane_changed()

    def _turn(self, by: int) -> bool:
        if len(self.panes) < 2:
            return False
        self.focus_pane(self.pane_index + by)
        return True

    def on_lines_touched(self, event: Lines.Touched) -> None:
        """The mouse was used on a pane."""
        event.stop()
        if event.lines in self.panes:
            self.focus_pane(self.panes.index(event.lines))

    def on_lines_opened(self, event: Lines.Opened) -> None:
        """A second click is enter."""
        event.stop()
        self.watch_app.act("open")

    def on_lines_moved(self, event: Lines.Moved) -> None:
        """The cursor is on something else."""
        event.stop()
        self.moved(event.lines)
        self.watch_app.refresh_bars()

    def moved(self, lines: Lines) -> None:
        """The cursor of a pane is on something else."""
