"""Two trials side by side."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.journal import Exchange
from orchestrator.watch import marks
from orchestrator.watch.columns import Column, table
from orchestrator.watch.compare import Comparison, Row
from orchestrator.watch.iterations import Line
from orchestrator.watch.panels_detail import who
from orchestrator.watch.texts import block


def _number(line: Line | None) -> Text:
    return Text(str(line.n) if line else "", "bold")


def _answer(line: Line | None, *, same: bool) -> Text:
    if line is None:
        return Text("")
    text = Text(line.text, "dim" if same else "")
    return text.append(f"  ! {line.error}", "red") if line.error else text


def _sign(row: Row) -> Text:
    if row.same:
        return Text("=", "dim")
    if row.left is None:
        return Text(">", "green")
    return Text("<", "red") if row.right is None else Text("≠", "yellow")


ROWS: tuple[Column[Row], ...] = (
    Column("left_n", "iter", lambda row: _number(row.left), 5, right=True),
    Column("left", "left", lambda row: _answer(row.left, same=row.same), 20, flexible=True),
    Column("sign", "", _sign, 1),
    Column("right", "right", lambda row: _answer(row.right, same=row.same), 20, flexible=True),
    Column("right_n", "iter", lambda row: _number(row.right), 5, right=True),
)


def head(comparison: Comparison, width: int) -> RenderableType:
    """Who is compared with whom, how many answers agree, where they first part."""
    lines = [
        Text(" left   ", "bold").append_text(who(comparison.left)),
        Text(" right  ", "bold").append_text(who(comparison.right)),
    ]
    pieces: list[Text | str] = [f"{comparison.agreeing} of {len(comparison.rows)} rows agree"]
    if comparison.first is None:
        same = "both answered the same throughout" if comparison.rows else "neither has an answer yet"
        pieces.append(Text(same, "green"))
    else:
        row = comparison.rows[comparison.first]
        places = [f"{line.n} {side}" for line, side in ((row.left, "left"), (row.right, "right")) if line]
        pieces.append(Text(f"they first part at iteration {', '.join(places)}", "yellow"))
    pieces.append(Text("only the beginning of both is compared", "yellow") if comparison.cut else "")
    lines.append(Text(" ").append_text(marks.join(pieces)))
    return Text("\n", no_wrap=True).join([marks.cut(each, width) for each in lines])


def difference(comparison: Comparison, row: int, width: int, *, lines: int = 200) -> RenderableType:
    """The two answers of a row and what the two were shown."""
    if not 0 <= row < len(comparison.rows):
        return Text(" There is nothing to compare yet.", "dim")
    left, right = comparison.pair(row)
    parts: list[RenderableType] = []
    for name, style, one in (("left", "red", left), ("right", "green", right)):
        parts.append(Text(f" {name} answered", f"bold {style}"))
        parts.append(_answered(one, width, max(3, lines // 4)))
    parts.append(Text(" what they were shown before (- left, + right)", "bold"))
    found = comparison.difference(row, lines)
    if left is None or right is None:
        parts.append(Text("   only one of them came this far", "dim"))
    elif not found:
        parts.append(Text("   both were shown the same", "dim"))
    else:
        parts += [marks.cut(Text(f"   {line}", _style(line)), width) for line in found]
    return Group(*parts)


def _answered(exchange: Exchange | None, width: int, lines: int) -> RenderableType:
    if exchange is None:
        return Text("   nothing", "dim")
    return block(exchange.asked.prefix + exchange.reply, width, lines, indent="   ")


def _style(line: str) -> str:
    if line.startswith(("+++", "---", "@@")):
        return "bold"
    return {"+": "green", "-": "red"}.get(line[:1], "")


def compare(comparison: Comparison, width: int, *, around: int = 20) -> RenderableType:
    """All of it: head, the rows around the first difference, that difference."""
    at = comparison.first or 0
    start = max(0, at - around // 2)
    shown = comparison.rows[start : at + around]
    parts: list[RenderableType] = [head(comparison, width), Text()]
    if start:
        parts.append(Text(f" … {start} rows before", "dim"))
    parts.append(table(ROWS, shown, width))
    if at + around < len(comparison.rows):
        parts.append(Text(f" … {len(comparison.rows) - at - around} rows after", "dim"))
    if comparison.first is not None:
        parts += [Text(), difference(comparison, comparison.first, width, lines=40)]
    return Group(*parts)
