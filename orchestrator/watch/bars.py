"""Single lines around the views: headline, tabs, titles of panes, the note, the footer."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.geometry import Region, Size
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from orchestrator.watch.sources import fold_words

REVERSE = Style(reverse=True)
_CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")
READABLE = 1.5  # seconds that a note stays, whatever is pressed


def segments_of(text: Text, console: Console, base: Style) -> list[Segment]:
    """A line of text as segments, for `Strip`. The last guard: no control character ever reaches the terminal."""
    return [
        Segment(
            segment.text if segment.text.isprintable() else _CONTROLS.sub(" ", segment.text),
            base + segment.style if segment.style else base,
        )
        for segment in text.render(console, end="")
        if segment.text
    ]


class Bar(Widget):
    """A few lines of text, cut at the width; only lines that differ are drawn again."""

    DEFAULT_CSS = """
    Bar { height: auto; width: 1fr; }
    """

    def __init__(self, id: str | None = None, *, style: Style | None = None, lines: int = 1) -> None:
        super().__init__(id=id)
        self.lines: list[Text] = [Text("")] * lines
        self._least = lines
        self._over = style or Style()

    def put(self, *lines: Text) -> None:
        """Show these lines."""
        wanted = list(lines) + [Text("")] * (self._least - len(lines))
        if len(wanted) != len(self.lines):
            self.lines = wanted
            self.refresh(layout=True)
            return
        changed = [y for y, line in enumerate(wanted) if line != self.lines[y] or line.spans != self.lines[y].spans]
        self.lines = wanted
        if changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """One row for each line."""
        return len(self.lines)

    def render_line(self, y: int) -> Strip:
        """A line, cut at the width."""
        width = self.size.width
        base = self.rich_style + self._over
        if y >= len(self.lines):
            return Strip.blank(width, base)
        return Strip(segments_of(self.lines[y], self.app.console, base)).adjust_cell_length(width, base)


class Tabs(Bar):
    """Names in a row, one of them in reverse. A click chooses."""

    class Chosen(Message):
        """A name was clicked."""

        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

    def __init__(self, id: str) -> None:
        super().__init__(id=id)
        self._places: list[tuple[int, int, str]] = []
        self._chosen: tuple[Sequence[tuple[str, str, str]], str, str, bool] | None = None

    def on_resize(self) -> None:
        """More or less has room."""
        if self._chosen is not None:
            names, active, rest, must = self._chosen
            self.choose(names, active, rest, must=must)

    def choose(self, names: Sequence[tuple[str, str, str]], active: str, rest: str, *, must: bool) -> None:
        """`names`: (name, what is shown, what is shown where room is short). `rest` stands at the right end where there
        is room for it; where it `must`, the names make room."""
        self._chosen = (names, active, rest, must)
        needed = 2 + sum(cell_len(label) + 2 for _, label, _ in names) + cell_len(rest)
        tight = must and 0 < self.size.width < needed
        line, self._places = Text(" "), []
        for name, label, short in names:
            if tight and name != active:
                label = short
            start = cell_len(line.plain)
            line.append(f" {label} ", REVERSE if name == active else Style())
            self._places.append((start, cell_len(line.plain), name))
        if rest:
            room = self.size.width - cell_len(line.plain) - cell_len(rest) - 1
            if room > 0:
                line.append(" " * room + rest, "bold")
        self.put(line)

    def on_click(self, event: events.Click) -> None:
        """Choose what was clicked."""
        for start, end, name in self._places:
            if start <= event.x < end:
                self.post_message(self.Chosen(name))


@dataclass(frozen=True)
class Hint:
    """A key in the footer: what to press, what it does."""

    key: str
    word: str
    action: str


class Footer(Tabs):
    """The keys that do something now, as many as fit. `hints` are those that are shown."""

    def __init__(self) -> None:
        super().__init__("footer")
        self.hints: tuple[Hint, ...] = ()
        self._wanted: tuple[Hint, ...] = ()
        self._last: tuple[Hint, ...] = ()

    def offer(self, hints: Sequence[Hint], last: Sequence[Hint]) -> None:
        """`last` are always there (help, quit), at the end; the others as far as there is room."""
        self._wanted, self._last = tuple(hints), tuple(last)
        self._fit()

    def on_resize(self) -> None:
        """More or fewer keys fit."""
        self._fit()

    def _fit(self) -> None:
        room = self.size.width - sum(_wide(hint) for hint in self._last)
        fitting: list[Hint] = []
        for hint in self._wanted:
            room -= _wide(hint)
            if room < 0:
                break
            fitting.append(hint)
        self.hints = (*fitting, *self._last)
        line, self._places = Text(), []
        for hint in self.hints:
            start = cell_len(line.plain)
            line.append(f" {hint.key}", "bold reverse").append(" ", "reverse").append(f"{hint.word} ")
            self._places.append((start, cell_len(line.plain), hint.action))
        self.put(line)


def _wide(hint: Hint) -> int:
    return cell_len(hint.key) + cell_len(hint.word) + 3


class Note(Bar):
    """What just happened, in at most three lines above the footer; empty most of the time."""

    def __init__(self) -> None:
        super().__init__("note", lines=0)
        self.text = ""
        self._since = 0.0

    def say(self, text: str, *, bad: bool = False) -> None:
        """Show a sentence; it takes no room when there is none."""
        self.text, self._since = text, time.monotonic()
        lines = fold_words(text, max(20, self.size.width or self.app.size.width) - 2)[:3] if text else []
        self.put(*(Text(f" {line}", "bold red" if bad else "bold") for line in lines))

    def fade(self) -> None:
        """A key was pressed: what could be read goes."""
        if self.text and time.monotonic() - self._since > READABLE:
            self.say("")
