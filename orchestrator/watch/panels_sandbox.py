"""What an instance changed on its disk."""

from __future__ import annotations

from collections import Counter

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.untrusted import one_line
from orchestrator.watch import marks
from orchestrator.watch.changes import ChangeLine, Changes
from orchestrator.watch.columns import Column, table

_SIGNS = {
    "added": ("+", "green"),
    "modified": ("M", "yellow"),
    "written": ("W", "yellow"),
    "deleted": ("-", "red"),
    "type": ("T", "magenta"),
    "mode": ("m", "cyan"),
    "xattr": ("x", "cyan"),
}


def _sign(one: ChangeLine) -> Text:
    return Text(*_SIGNS.get(one.kind, ("?", "")))


def _path(one: ChangeLine) -> Text:
    return Text(one_line(one.path, 400) + ("/" if one.directory else ""))


def _size(one: ChangeLine) -> Text:
    return Text("" if one.directory or one.kind == "deleted" else marks.size(one.size))


CHANGES: tuple[Column[ChangeLine], ...] = (
    Column("sign", "", _sign, 1),
    Column("kind", "change", lambda one: Text(one_line(one.kind, 10), _SIGNS.get(one.kind, ("", ""))[1]), 8),
    Column("size", "size", _size, 9, right=True, sort=lambda one: one.size),
    Column("path", "path", _path, 20, flexible=True, sort=lambda one: one.path),
)


def head(changes: Changes, name: str, width: int) -> Text:
    """How many of each kind, how many bytes, whether it still runs, what is left out."""
    kinds = Counter(one.kind for one in changes.rows)
    pieces: list[Text | str] = [Text(marks.name(name), "bold")]
    pieces.append(Text("while it runs", "yellow") if changes.live else "as it ended")
    pieces += [Text(f"{number} {one_line(kind, 10)}", _SIGNS.get(kind, ("", ""))[1]) for kind, number in kinds.items()]
    pieces.append(marks.size(changes.total_bytes) if changes.rows else "")
    pieces.append(Text("there are more", "yellow") if changes.cut else "")
    lines = [Text(" ").append_text(marks.join(pieces))]
    if changes.note:
        lines.append(Text(f" {one_line(changes.note, 300)}", "yellow"))
    elif changes.live:
        lines.append(Text(" It may change while it is read. modified and written: the content may be the same.", "dim"))
    return Text("\n", no_wrap=True).join([marks.cut(each, width) for each in lines])


def sandbox(changes: Changes, name: str, width: int, *, last: int = 500) -> RenderableType:
    """Head and list."""
    parts: list[RenderableType] = [head(changes, name, width), Text()]
    if changes.rows:
        parts.append(table(CHANGES, changes.rows[:last], width))
        if len(changes.rows) > last:
            parts.append(Text(f" … and {len(changes.rows) - last:,} more", "dim"))
    elif not changes.note:
        parts.append(Text(" It has changed nothing so far." if changes.live else " It changed nothing.", "dim"))
    return Group(*parts)
