"""How panes share the room: on wide terminals side by side, on narrow ones one at a time with its neighbours' names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.style import Style
from rich.text import Text
from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical

from orchestrator.watch.bars import Bar
from orchestrator.watch.lines import Lines

ACTIVE = Style(reverse=True, bold=True)


class Pane(Vertical):
    """A pane with its title."""

    DEFAULT_CSS = """
    Pane { height: 1fr; width: 1fr; }
    """

    def __init__(self, lines: Lines, title: str) -> None:
        super().__init__(id=f"{lines.id}-pane")
        self.lines, self.title = lines, title
        self.extra = ""

    def compose(self) -> ComposeResult:
        """Title and lines."""
        yield Bar(f"{self.lines.id}-title")
        yield self.lines

    def put_title(self, names: Sequence[Pane]) -> None:
        """`names`: the panes that share this place, this one among them; the shown one is marked."""
        line = Text(" ")
        for pane in names:
            style: Style | str = ""
            if pane is self:
                style = ACTIVE if self.lines.active else "bold underline"
            line.append(f" {pane.title} ", style)
        if self.extra:
            line.append(f"  {self.extra}")
        for bar in self.query(f"#{self.lines.id}-title").results(Bar):  # none before it is composed
            bar.put(line)


@dataclass(frozen=True)
class Stack:
    """Panes above each other (`split`), or in the same place, one of them shown. `width`: in Textual's units."""

    panes: tuple[Pane, ...]
    width: str = "1fr"
    split: bool = False


class Body(Horizontal):
    """The stacks of a view. `lay_out` is told which pane has the keys and how wide the terminal is."""

    DEFAULT_CSS = """
    Body { height: 1fr; width: 1fr; }
    Body > Vertical { height: 1fr; }
    Body > .beside { border-left: solid $primary; padding-left: 1; }
    """

    def __init__(self, stacks: Sequence[Stack], order: Sequence[Pane] = ()) -> None:
        """`order`: that of the tab key, where it is not that of the stacks."""
        super().__init__()
        self.stacks = tuple(stacks)
        self.all = list(order) or [pane for stack in self.stacks for pane in stack.panes]
        self._shown = dict.fromkeys(range(len(self.stacks)), 0)
        self._columns: list[Vertical] = []

    def compose(self) -> ComposeResult:
        """A column for each stack."""
        for stack in self.stacks:
            column = Vertical(*stack.panes)
            column.styles.width = stack.width
            self._columns.append(column)
            yield column

    def lay_out(self, active: int, *, wide: bool) -> None:
        """Show what has room; the active pane always."""
        pane = self.all[active]
        for number, stack in enumerate(self.stacks):
            if pane in stack.panes:
                self._shown[number] = stack.panes.index(pane)
            column = self._columns[number]
            here = wide or pane in stack.panes
            column.display = here
            column.styles.width = stack.width if wide else "1fr"
            column.set_class(wide and number > 0, "beside")
            for index, each in enumerate(stack.panes):
                if wide:
                    each.display = stack.split or index == self._shown[number]
                else:
                    each.display = each is pane
                if each.display and here:
                    each.put_title(([each] if stack.split else stack.panes) if wide else self.all)
