"""Long texts as lines of a terminal: wrapped by cells, capped, and never with a control character."""

from __future__ import annotations

from collections.abc import Iterator

from rich.cells import cell_len, chop_cells
from rich.text import Text

from orchestrator.untrusted import printable

FOLDS = 40  # rows of the screen that one line may take


def rows(text: str, width: int, style: str = "", *, tail: bool = False) -> Iterator[Text]:
    """The rows of a text that is made harmless here. Of a very long line its beginning is shown (or, with `tail`, its
    end), and how much is left out."""
    width = max(2, width)
    for line in printable(text).split("\n"):
        clean = line.expandtabs(4)
        if len(clean) <= width and cell_len(clean) <= width:
            yield Text(clean, style, no_wrap=True)
            continue
        most = FOLDS * width
        part = clean[-most:] if tail else clean[:most]
        left = Text(f"… {len(clean) - len(part):,} more characters on this line", "dim", no_wrap=True)
        if tail and len(part) < len(clean):
            yield left
        yield from (Text(piece, style, no_wrap=True) for piece in chop_cells(part, width))
        if not tail and len(part) < len(clean):
            yield left


def block(text: str, width: int, lines: int, style: str = "", *, indent: str = " ", tail: bool = False) -> Text:
    """At most `lines` rows of a text, from its beginning or its end, and how much is left out."""
    inner = max(4, width - cell_len(indent))
    whole = text.split("\n")
    part = whole[-lines:] if tail else whole[:lines]
    made = []
    for row in rows("\n".join(part), inner, style, tail=tail):
        made.append(row)
        if len(made) > lines and not tail:
            break
    kept = made[-lines:] if tail else made[:lines]
    out = [Text(indent).append_text(row) for row in kept]
    left = len(whole) - len(part)
    if left or len(made) > len(kept):
        note = f"{indent}… {left:,} more lines" if left else f"{indent}… more"
        out = [Text(note, "dim"), *out] if tail else [*out, Text(note, "dim")]
    return Text("\n", no_wrap=True, overflow="crop").join(out)
