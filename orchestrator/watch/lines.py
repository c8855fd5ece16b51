"""The one widget that all views are made of: a pane of lines with a cursor, drawn line by line.

It never asks for more lines than are visible, and on new data repaints only the lines that differ. That is what keeps
2,000 trials or a megabyte of output as quick as an empty list, and the terminal's traffic small over ssh.
"""

from __future__ import annotations

from collections.abc import Hashable

from rich.segment import Segment
from rich.style import Style
from rich.text import Text
from textual import events
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from orchestrator.watch.bars import segments_of
from orchestrator.watch.sources import Source, Texts, fold_words

CURSOR = Style(reverse=True)  # an attribute, not a colour: seen without colours and on every palette
RESTING = Style(underline=True)
FOUND = Style(bold=True, underline=True)
HEADER = Style(bold=True, underline=True)


class Lines(Widget):
    """Lines of a `Source`. Keys come through `act`; the mouse moves the cursor and the wheel scrolls."""

    DEFAULT_CSS = """
    Lines { height: 1fr; width: 1fr; }
    """

    class Moved(Message):
        """The cursor is on another line, or another thing."""

        def __init__(self, lines: Lines) -> None:
            super().__init__()
            self.lines = lines

        @property
        def control(self) -> Lines:
            return self.lines

    class Opened(Moved):
        """A second click on the line under the cursor."""

    class Touched(Moved):
        """The mouse was used on this pane."""

    def __init__(self, id: str, *, cursor: bool = True, follow: bool = False, empty: str = "") -> None:
        super().__init__(id=id)
        self.source: Source = Texts([])
        self.has_cursor = cursor
        self.follow = follow
        self.empty = empty
        self.cursor = 0
        self.top = 0
        self.left = 0
        self.active = False
        self.found: str = ""  # words that are marked wherever they are seen
        self._key: Hashable = None
        self._strips: list[Strip] = []

    # -- what is shown

    def show(self, source: Source, *, keep: bool = True) -> None:
        """Another source, or the same one with other lines. `keep`: the cursor stays with what it is on."""
        before = self._key if keep else None
        at_end = self.follow
        self.source = source
        self._fold()
        if not keep:
            self.cursor = self.top = self.left = 0
        elif before is not None and self.has_cursor:
            self._find(before)
        if at_end:
            self._to_end()
        self._settle(moved=True)

    def set_empty(self, text: str) -> None:
        """What an empty pane says."""
        if text != self.empty:
            self.empty = text
            self.repaint()

    def set_active(self, active: bool) -> None:
        """Whether keys go to this pane: its cursor is then shown in full."""
        if active != self.active:
            self.active = active
            self.repaint()

    @property
    def key(self) -> Hashable:
        """What the cursor is on, or None in an empty pane."""
        return self.source.key(self.cursor) if self.cursor < len(self.source) else None

    @property
    def page(self) -> int:
        """Lines that fit below the header."""
        return max(1, self.size.height - (1 if self._header() is not None else 0))

    def go(self, n: int, *, centre: bool = False) -> None:
        """Put the cursor (in a pane without one: the top) on line `n`."""
        if self.has_cursor:
            self.cursor = n
            if centre:
                self.top = n - self.page // 2
        else:
            self.top = n - (self.page // 2 if centre else 0)
        self.follow = False
        self._settle(moved=True)

    def act(self, action: str) -> bool:
        """Carry out a moving action; False if it is none."""
        half, page = max(1, self.page // 2), max(1, self.page - 1)
        steps = {"down": 1, "up": -1, "half_down": half, "half_up": -half, "page_down": page, "page_up": -page}
        if action in steps:
            self._move(steps[action])
        elif action == "top":
            self.go(0)
        elif action == "bottom":
            self._to_end()
            self.follow = not self.has_cursor
            self._settle(moved=True)
        elif action in ("left", "right") and (shift := getattr(self.source, "shift", None)) is not None:
            shift(1 if action == "right" else -1, self._inner())
            self.repaint()
        elif action in ("left", "right"):
            self.left = max(0, self.left + (8 if action == "right" else -8))
            self.repaint()
        else:
            return False
        return True

    def find(self, text: str) -> None:
        """Mark these words, and go to the first of them from here on."""
        self.found = text
        if text and not self._has(self._place()):
            self.find_next(1)
        self.redraw()

    def redraw(self) -> None:
        """Draw every line again."""
        self._strips = []
        self.refresh()

    def find_next(self, direction: int) -> bool:
        """Go to the next or previous line that has the words; around the end; False if none has."""
        count, here = len(self.source), self._place()
        for step in range(1, count + 1):
            n = (here + direction * step) % count
            if self._has(n):
                self.go(n, centre=True)
                return True
        return False

    def _place(self) -> int:
        return self.cursor if self.has_cursor else self.top + self.page // 2

    def _has(self, n: int) -> bool:
        if not self.found or n >= len(self.source):
            return False
        return self.found.lower() in self.source.line(n, self._inner()).plain.lower()

    def _move(self, by: int) -> None:
        if self.has_cursor:
            self.cursor += by
        else:
            self.top += by
        self.follow = False
        self._settle(moved=True)

    def _to_end(self) -> None:
        if self.has_cursor:
            self.cursor = len(self.source) - 1
        self.top = len(self.source)

    def _find(self, key: Hashable) -> None:
        if self.cursor < len(self.source) and self.source.key(self.cursor) == key:
            return
        for n in range(len(self.source)):
            if self.source.key(n) == key:
                self.top += n - self.cursor  # it stays at the same place of the screen
                self.cursor = n
                return

    def _settle(self, *, moved: bool = False) -> None:
        """Bring cursor and scroll position back into what exists, then draw what changed."""
        last = max(0, len(self.source) - 1)
        self.cursor = min(max(0, self.cursor), last)
        page = self.page
        if self.has_cursor:
            self.top = min(max(self.top, self.cursor - page + 1), self.cursor)
        self.top = min(max(0, self.top), max(0, len(self.source) - page))
        self.repaint()
        key = self.key
        if moved and key != self._key:
            self._key = key
            if self.is_attached:
                self.post_message(self.Moved(self))

    # -- drawing

    def _fold(self) -> None:
        fold = getattr(self.source, "fold", None)
        if fold is not None and self.size.width:
            fold(self._inner())

    def _inner(self) -> int:
        """Cells for the text: the last column belongs to the scroll mark."""
        return max(1, self.size.width - 1)

    def _header(self) -> Text | None:
        return self.source.header(self._inner()) if len(self.source) else None

    def repaint(self) -> None:
        """Compose the visible lines and refresh those that differ from what is on the screen."""
        height, width = self.size.height, self.size.width
        if not height or not width:
            return
        strips = self._draw(height, width)
        if len(strips) != len(self._strips):
            self._strips = strips
            self.refresh()
            return
        changed = [Region(0, y, width, 1) for y, strip in enumerate(strips) if strip != self._strips[y]]
        self._strips = strips
        if changed:
            self.refresh(*changed)

    def _draw(self, height: int, width: int) -> list[Strip]:
        base = self.rich_style
        if not len(self.source):
            return self._empty_strips(height, width, base)
        strips = []
        inner, gap, thumb = self._inner(), Segment(" ", base), Segment("┃", base)
        if (header := self._header()) is not None:
            strips.append(self._strip(header, inner, base + HEADER, gap))
        mark_top, mark_bottom = self._thumb(height - len(strips))
        for y in range(height - len(strips)):
            n = self.top + y
            mark = thumb if mark_top <= y < mark_bottom else gap
            if n >= len(self.source):
                strips.append(Strip.blank(width, base))
                continue
            style = base
            if self.has_cursor and n == self.cursor:
                style = base + (CURSOR if self.active else RESTING)
            strips.append(self._strip(self.source.line(n, inner), inner, style, mark, over=style is not base))
        return strips

    def _strip(self, text: Text, width: int, style: Style, mark: Segment, *, over: bool = False) -> Strip:
        if self.found and not over:
            text = text.copy()
            text.highlight_words([self.found], FOUND, case_sensitive=False)
        segments = segments_of(text, self.app.console, style)
        strip = Strip(segments).crop(self.left, self.left + width) if segments else Strip([])
        strip = strip.extend_cell_length(width, style)
        return Strip([*strip, mark], width + 1)

    def _empty_strips(self, height: int, width: int, base: Style) -> list[Strip]:
        lines = fold_words(self.empty, max(1, width - 2)) if self.empty else []
        strips = [Strip([Segment(f" {line}", base)]).adjust_cell_length(width, base) for line in lines[:height]]
        return strips + [Strip.blank(width, base)] * (height - len(strips))

    def _thumb(self, page: int) -> tuple[int, int]:
        total = len(self.source)
        if total <= page or page < 1:
            return 0, 0
        size = max(1, page * page // total)
        start = round((page - size) * self.top / max(1, total - page))
        return start, start + size

    def render_line(self, y: int) -> Strip:
        """One line, as composed last."""
        if y < len(self._strips):
            return self._strips[y]
        return Strip.blank(self.size.width, self.rich_style)

    def render_lines(self, crop: Region) -> list[Strip]:
        """The composed lines; composed here at the first drawing, or after a change of size or theme."""
        if len(self._strips) != self.size.height or (self._strips and self._strips[0].cell_length != self.size.width):
            self._strips = self._draw(self.size.height, self.size.width)
        return super().render_lines(crop)

    def on_resize(self, event: events.Resize) -> None:
        """Fold again and keep the cursor in sight."""
        self._fold()
        self._strips = []
        self._settle()

    def notify_style_update(self) -> None:
        """Another theme: everything is drawn again."""
        super().notify_style_update()
        self.redraw()

    # -- the mouse

    def on_click(self, event: events.Click) -> None:
        """The cursor goes to the line; a click on it opens it."""
        row = event.y - (1 if self._header() is not None else 0) + self.top
        self.post_message(self.Touched(self))
        if self.has_cursor and 0 <= row < len(self.source):
            if row == self.cursor and self.active:
                self.post_message(self.Opened(self))
            else:
                self.go(row)

    def on_mouse_scroll_down(self, event: events.MouseScrollDown) -> None:
        """Three lines."""
        event.stop()
        self._move(3)

    def on_mouse_scroll_up(self, event: events.MouseScrollUp) -> None:
        """Three lines."""
        event.stop()
        self._move(-3)
