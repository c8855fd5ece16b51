"""Sandbox: what an instance changed on its disk."""

from __future__ import annotations

from typing import Any

from textual.app import ComposeResult

from orchestrator.watch.bars import Bar
from orchestrator.watch.changes import ChangeLine, Changes, look
from orchestrator.watch.lines import Lines
from orchestrator.watch.panels_sandbox import CHANGES, head
from orchestrator.watch.tables import Table
from orchestrator.watch.values import Instance, Snapshot
from orchestrator.watch.view import Target, View

EMPTY = "Choose an instance first: D on an instance (1) or on a trial of a campaign (2)."
EVERY = 2.0


class SandboxView(View):
    """A list of paths; of a running instance it is looked at again and again."""

    TITLE = "sandbox"
    ACTIONS = ("sort", "copy", "kill", "pause")

    def __init__(self) -> None:
        """Made whole at once: news may come before it is composed."""
        super().__init__()
        self.ident = ""
        self.changes: Changes | None = None
        self._instance: Instance | None = None
        self.table: Table[ChangeLine] = Table(
            CHANGES, key=lambda row: (row.path, row.kind), words=lambda row: f"{row.kind} {row.path}"
        )
        lines = Lines("sandbox-table", empty=EMPTY)
        self.panes = [lines]

    def compose(self) -> ComposeResult:
        """A head and a table."""
        yield Bar("sandbox-head", lines=0)
        yield self.pane

    def enter(self, ident: str) -> None:
        """An instance or a trial; empty: the one of before, else main or the first that runs."""
        if ident and ident != self.ident:
            self.ident, self.changes = ident, None
            self.pane.set_empty("looking…")
            self.pane.show(self.table.fill(()), keep=False)
        self._read()

    def leave(self) -> None:
        """No more."""
        self.watch_app.details.drop("changes")

    def _read(self) -> None:
        if self.ident:
            snapshot = self.watch_app.snapshot  # the reading thread may look before the next news
            self._instance = snapshot.instance(self.ident) if snapshot else None
            self.watch_app.details.every("changes", EVERY, self._poll)

    def _poll(self) -> tuple[str, Changes]:
        """In the reading thread. What has ended does not change any more."""
        ident, running = self.ident, self._instance
        changes = self.changes
        if changes is not None and not changes.live and running is None:
            return ident, changes
        return ident, look(self.watch_app.home, ident, running)

    def snapshot(self, snapshot: Snapshot) -> None:
        """Whether it still runs."""
        if not self.ident and snapshot.instances:
            self.enter(snapshot.instances[0].id)
        before, self._instance = self._instance, snapshot.instance(self.ident)
        if (before is None) != (self._instance is None):
            self.watch_app.details.hurry("changes")

    def loaded(self, name: str, value: Any, error: BaseException | None) -> None:
        """A new look."""
        if name != "changes":
            return
        if error is not None:
            self.pane.set_empty(self.watch_app.words_of(error))
            self.pane.show(self.table.fill(()))
            return
        ident, changes = value
        if ident != self.ident or changes is self.changes:
            return
        self.changes = changes
        self.heads()
        self.pane.set_empty(changes.note or "nothing was changed")
        self.pane.show(self.table.fill(changes.rows))

    def heads(self) -> None:
        """How many changes of each kind."""
        if self.changes is not None:
            self.put("sandbox-head", *head(self.changes, self.ident, self.room).split("\n"))

    def target(self) -> Target:
        """The path for the clipboard, the instance for the steps."""
        row = self.table.at(self.pane.cursor)
        trial = self.ident if self._instance is None or self._instance.kind == "test" else None
        campaign = self._instance.campaign if self._instance else None
        return Target(row.path if row else self.ident, self._instance, trial or None, campaign)

    def set_filter(self, text: str, *, done: bool) -> None:
        """Fewer paths."""
        super().set_filter(text, done=done)
        if self.changes is not None:
            self.pane.set_empty(f"no path has «{text}» (esc drops the filter)" if text else self.changes.note)
        self.pane.show(self.table.set_filter(text))

    def act(self, action: str) -> bool:
        """The order of the table."""
        return self.order(action, self.table, self.pane, "in the order of the tree") or super().act(action)

    def live(self) -> list[str]:
        """Steps only while it runs."""
        names = list(self.ACTIONS) if self.ident else []
        return names if self._instance else [name for name in names if name not in ("kill", "pause")]

    def state(self) -> str:
        """How many."""
        if self.filter_text:
            return f"/{self.filter_text} {len(self.table)} of {self.table.total}"
        return f"{self.table.total} changes" if self.changes else ""
