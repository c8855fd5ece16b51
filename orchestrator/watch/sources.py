"""What a pane of lines shows: a number of lines, each made only when it is looked at.

All texts come in as Rich `Text` or are cleaned here; a line never holds a control character, so that one line of a
source is one line of the screen whatever an instance printed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import Protocol

from rich.cells import cell_len, chop_cells
from rich.console import Console, RenderableType
from rich.segment import Segment
from rich.text import Text

from orchestrator.untrusted import printable

TAB = 8
PIECE = 16_384  # characters of an endless line that are folded for good


class Source(Protocol):
    """Lines of a pane. `key(n)` names what a line is about, so that the cursor stays with it when lines come and go."""

    def __len__(self) -> int: ...

    def line(self, n: int, width: int) -> Text:
        """Line `n` (from 0) for a pane `width` cells wide; longer lines are cut by the pane."""
        ...

    def key(self, n: int) -> Hashable: ...

    def header(self, width: int) -> Text | None:
        """A line that stays at the top of the pane."""
        ...


class Texts:
    """Lines that are there already."""

    def __init__(self, lines: Sequence[Text], keys: Sequence[Hashable] | None = None, header: Text | None = None):
        self._lines, self._keys, self._header = lines, keys, header

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, n: int, width: int) -> Text:
        """The line, as long as it is."""
        return self._lines[n]

    def key(self, n: int) -> Hashable:
        """The key that was given, else the number."""
        return self._keys[n] if self._keys is not None else n

    def header(self, width: int) -> Text | None:
        """The header that was given."""
        return self._header


class Wrapped:
    """A long plain text, cleaned and folded to the width. Growing texts fold only what is new (`grow`).

    `words`: prose, folded between words; else at the width, as a terminal does it.
    """

    def __init__(self, text: str, *, words: bool = False) -> None:
        self.text, self._words = text, words
        self._width = 0
        self._folded: list[str] = []
        self._whole = 0  # characters of `text` that lie in finished lines of `_folded`
        self._kept = 0  # lines of `_folded` that are finished

    def grow(self, text: str) -> Wrapped:
        """The same source with another text; cheap if it only got longer."""
        if not text.startswith(self.text):
            self._width = 0
        self.text = text
        return self

    def fold(self, width: int) -> None:
        """Make the lines for this width."""
        if width != self._width:
            self._width, self._folded, self._whole, self._kept = width, [], 0, 0
        del self._folded[self._kept :]
        end = self.text.rfind("\n") + 1
        if end > self._whole:
            fresh = self.text[self._whole : end - 1]
            self._folded.extend(self._cut(fresh, width))
            self._whole, self._kept = end, len(self._folded)
        while len(self.text) - self._whole > 2 * PIECE:  # a line without an end must not be folded again and again
            piece = self.text[self._whole : self._whole + PIECE]
            self._folded.extend(self._cut(piece, width))
            self._whole += PIECE
            self._kept = len(self._folded)
        if rest := self.text[self._whole :]:
            self._folded.extend(self._cut(rest, width))

    def _cut(self, text: str, width: int) -> list[str]:
        return fold_words(text, width) if self._words else fold_text(text, width)

    def lines(self, width: int) -> int:
        """How many lines it has at this width."""
        self.fold(width)
        return len(self._folded)

    def __len__(self) -> int:
        return len(self._folded)

    def line(self, n: int, width: int) -> Text:
        """A folded line."""
        return Text(self._folded[n], end="")

    def key(self, n: int) -> Hashable:
        """The number."""
        return n

    def header(self, width: int) -> Text | None:
        """None."""
        return None


class Sections:
    """Texts below each other, each under a heading of ours. A gutter before every line of a text that somebody else
    wrote keeps it from looking like such a heading."""

    GUTTER = "│ "

    def __init__(self, parts: Sequence[tuple[Text, Wrapped]]) -> None:
        self.parts = parts
        self._starts: list[int] = []
        self._count = 0

    def fold(self, width: int) -> None:
        """Make the lines for this width."""
        self._starts, self._count = [], 0
        for _, text in self.parts:
            self._starts.append(self._count)
            self._count += 1 + text.lines(max(1, width - len(self.GUTTER)))

    def __len__(self) -> int:
        return self._count

    def line(self, n: int, width: int) -> Text:
        """A heading, or a line of a text behind the gutter."""
        part = bisect_right(self._starts, n) - 1
        heading, text = self.parts[part]
        place = n - self._starts[part]
        return heading if place == 0 else Text(self.GUTTER, "bold", end="") + text.line(place - 1, width)

    def key(self, n: int) -> Hashable:
        """The number."""
        return n

    def header(self, width: int) -> Text | None:
        """None."""
        return None


class Rendered:
    """Any Rich renderable, made and drawn once for the width it is looked at with."""

    def __init__(self, make: Callable[[int], RenderableType]) -> None:
        self._make = make
        self._width = 0
        self._lines: list[Text] = []

    def fold(self, width: int) -> None:
        """Draw it for this width."""
        if width == self._width:
            return
        self._width = width
        self._lines = draw(self._make(width), width)

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, n: int, width: int) -> Text:
        """A drawn line."""
        return self._lines[n]

    def key(self, n: int) -> Hashable:
        """The number."""
        return n

    def header(self, width: int) -> Text | None:
        """None."""
        return None


@lru_cache(maxsize=8)
def _console(width: int) -> Console:
    return Console(width=max(1, width), force_terminal=True, color_system="truecolor")


def draw(renderable: RenderableType, width: int) -> list[Text]:
    """A renderable as lines of text."""
    console = _console(width)
    options = console.options.update(width=max(1, width))
    lines = []
    for segments in console.render_lines(renderable, options, pad=False):
        line = Text(end="", no_wrap=True)
        for segment in Segment.simplify(segments):
            line.append(segment.text, segment.style)
        lines.append(line)
    return lines


def fold_text(text: str, width: int) -> list[str]:
    """Clean `text` and cut it into lines of at most `width` cells. An empty line stays an empty line."""
    width = max(1, width)
    lines: list[str] = []
    for line in printable(text).split("\n"):
        if "\t" in line:
            line = line.expandtabs(TAB)
        if len(line) <= width and (line.isascii() or cell_len(line) <= width):
            lines.append(line)
        elif line.isascii():
            lines.extend(line[start : start + width] for start in range(0, len(line), width))
        else:
            lines.extend(chop_cells(line, width))
    return lines


def fold_words(text: str, width: int) -> list[str]:
    """The same, cut between words where there are any; the beginning of a line keeps its indent."""
    lines: list[str] = []
    for line in fold_text(text, 1 << 30):
        if cell_len(line) <= width:
            lines.append(line)
            continue
        indent = line[: len(line) - len(line.lstrip())][: width // 2]
        wrapped = Text(line.strip()).wrap(_console(width), max(1, width - len(indent)))
        lines.extend(indent + part.plain.rstrip() for part in wrapped)
    return lines
