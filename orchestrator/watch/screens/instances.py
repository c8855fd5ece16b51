"""Instances: what runs now."""

from __future__ import annotations

from textual.app import ComposeResult

from orchestrator.watch.lines import Lines
from orchestrator.watch.panels_overview import COLUMNS
from orchestrator.watch.tables import Table
from orchestrator.watch.values import Instance, Snapshot
from orchestrator.watch.view import Target, View

EMPTY = (
    "Nothing runs.\n\n"
    "sia campaign run campaign.toml    judge candidates\n"
    "sia supervise                     keep the main instance alive\n"
    "sia demo                          see both in a throw-away repository\n\n"
    "What ran before is in 2 (campaigns), 4 (generations) and 5 (events)."
)


def words(instance: Instance) -> str:
    """What the filter looks at."""
    parts = (instance.id, instance.kind, instance.label, instance.candidate, instance.task, instance.state)
    return " ".join(part for part in (*parts, instance.said, instance.last_action) if part)


class InstancesView(View):
    """One line for each running instance."""

    TITLE = "instances"
    ACTIONS = ("open", "kill", "pause", "message", "mark", "disk", "stop", "sort")

    def __init__(self) -> None:
        """Made whole at once: news may come before it is composed."""
        super().__init__()
        self.table: Table[Instance] = Table(COLUMNS, key=lambda row: row.id, words=words)
        lines = Lines("instances-table", empty="looking…")
        self.panes = [lines]

    def compose(self) -> ComposeResult:
        """A table."""
        yield self.pane

    def snapshot(self, snapshot: Snapshot) -> None:
        """Other numbers: only cells that differ are drawn."""
        empty = snapshot.problem or EMPTY
        self.table.fill(snapshot.instances)
        if snapshot.instances and not self.table.seen:
            empty = f"none of {len(snapshot.instances)} instances has «{self.filter_text}» (esc drops the filter)"
        self.pane.set_empty(empty)
        self.pane.show(self.table)

    def set_filter(self, text: str, *, done: bool) -> None:
        """Fewer lines."""
        super().set_filter(text, done=done)
        self.table.set_filter(text)
        if self.watch_app.snapshot is not None:
            self.snapshot(self.watch_app.snapshot)

    def selected(self) -> Instance | None:
        """The instance under the cursor."""
        return self.table.at(self.pane.cursor)

    def target(self) -> Target:
        """Steps are about it."""
        one = self.selected()
        if one is None:
            return Target()
        trial = one.id if one.kind == "test" else None
        return Target(one.id, one, trial, one.campaign, None if one.kind == "main" else one.candidate)

    def live(self) -> list[str]:
        """Nothing can be done to nothing."""
        one = self.selected()
        if one is None:
            return []
        without = [] if one.campaign else ["stop"]
        return [name for name in self.ACTIONS if name not in without]

    def act(self, action: str) -> bool:
        """enter opens the instance; the table's order."""
        if action == "open":
            one = self.selected()
            if one is not None:
                self.watch_app.go("detail", one.id)
        elif not self.order(action, self.table, self.pane, "in the order they were started"):
            return super().act(action)
        return True

    def state(self) -> str:
        """How many of how many."""
        shown = f"/{self.filter_text} {len(self.table.seen)} of {self.table.total}" if self.filter_text else ""
        return shown or f"{self.table.total} running"
