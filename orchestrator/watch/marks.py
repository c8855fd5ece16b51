"""Amounts, times and states in a few characters, and small pictures of numbers. All of it is plain text.

Numbers keep at most three digits and a unit, so that columns stay aligned. Signs are from the oldest character sets, so
that a Linux console has them too; colours are the terminal's own and only repeat what a word or a sign says.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.text import Text

from orchestrator.untrusted import one_line

STATES: dict[str, tuple[str, str]] = {  # state: sign, style
    "running": ("●", "green"),
    "starting": ("○", "cyan"),
    "paused": ("‖", "cyan"),
    "waiting": ("○", "cyan"),
    "verifying": ("○", "cyan"),
    "quiet": ("!", "yellow"),
    "stalled": ("!", "yellow"),
    "stale": ("?", "yellow"),
    "orphan": ("x", "red"),
    "planned": ("·", "dim"),
    "done": ("✓", "green"),
    "completed": ("✓", "green"),
    "interrupted": ("‖", "yellow"),
    "died": ("x", "yellow"),
    "failed": ("x", "red"),
    "limit": ("!", "yellow"),
    "crashed": ("x", "red"),
    "invalid": ("?", "magenta"),
}
_SPARKS = "▁▂▃▄▅▆▇█"
UNKNOWN = "–"


def sign(state: str) -> Text:
    """One character for a state."""
    mark, style = STATES.get(state, ("○", "cyan"))
    return Text(mark, style)


def style_of(state: str) -> str:
    """The accent of a state."""
    return STATES.get(state, ("", "cyan"))[1]


def count(amount: float | None) -> str:
    """`812`, `9.9k`, `35.7k`, `1.2M`."""
    if amount is None:
        return UNKNOWN
    for limit, unit in ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G")):
        scaled = amount / limit
        if abs(scaled) < 999.5:
            return f"{scaled:.0f}{unit}" if not unit or abs(scaled) >= 99.95 else f"{scaled:.1f}{unit}"
    return f"{amount / 1e9:.0f}G"


def megabytes(amount: float | None) -> str:
    """`0.2M`, `41M`, `1.5G`."""
    if amount is None:
        return UNKNOWN
    if amount >= 1000:
        return f"{amount / 1024:.1f}G"
    return f"{amount:.0f}M" if amount >= 9.95 else f"{amount:.1f}M"


def size(amount: int) -> str:
    """Bytes: `12 B`, `3.4 kB`, `1.0 MB`."""
    if amount < 1000:
        return f"{amount} B"
    for limit, unit in ((1e3, "kB"), (1e6, "MB"), (1e9, "GB")):
        if amount < 999.5 * limit:
            return f"{amount / limit:.1f} {unit}" if amount < 99.95 * limit else f"{amount / limit:.0f} {unit}"
    return f"{amount / 1e12:.1f} TB"


def money(amount: float | None) -> str:
    """`$0.0004`, `$0.133`, `$12.30`; `?` is unknown, which is not nothing."""
    if amount is None:
        return "?"
    if amount == 0 or amount >= 10:
        return f"${amount:.2f}"
    return f"${amount:.4f}" if amount < 0.01 else f"${amount:.3f}"


def span(seconds: float | None) -> str:
    """`7s`, `1m05`, `2h03`, `3d04h`."""
    if seconds is None:
        return UNKNOWN
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02}"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02}"
    return f"{whole // 86400}d{whole % 86400 // 3600:02}h"


def rough(seconds: float) -> str:
    """The same with one unit: `7s`, `40m`, `3h`, `12d`."""
    whole = int(max(0.0, seconds))
    for limit, unit in ((60, 1), (3600, 60), (2 * 86400, 3600)):
        if whole < limit:
            return f"{whole // unit}{'smh'[(1, 60, 3600).index(unit)]}"
    return f"{whole // 86400}d"


def percent(amount: float | None) -> str:
    """`40%`."""
    return UNKNOWN if amount is None else f"{amount:.0f}%"


def clock(moment: float, now: float | None = None) -> str:
    """A time of day; `05-12 10:00` where the day is another one than `now`'s, the day alone of another year."""
    there = time.localtime(moment)
    today = time.localtime(time.time() if now is None else now)
    if there[:3] == today[:3]:
        return time.strftime("%H:%M:%S", there)
    return time.strftime("%Y-%m-%d", there) if there[0] != today[0] else time.strftime("%m-%d %H:%M", there)


def bar(part: float, width: int, style: str = "") -> Text:
    """A bar that is filled by `part` (0 to 1): `█████░░░`."""
    filled = round(max(0.0, min(1.0, part)) * width)
    text = Text("█" * filled, style)
    return text.append("░" * (width - filled), "dim")


def sparkline(values: Sequence[float], width: int, top: float | None = None) -> str:
    """The last values as a line of small bars, between 0 and `top` (default: the largest of them)."""
    shown = list(values)[-width:]
    highest = max([top or 0.0, *shown]) or 1.0
    marks = "".join(_SPARKS[min(7, int(value / highest * 7.999))] for value in shown)
    return marks.rjust(width)


def interval(low: float | None, middle: float, high: float | None, reach: float, width: int) -> str:
    """An interval on a scale from −reach to reach: `····├──●──┤│····`. An unbounded side ends in an arrow."""
    cells = ["·"] * width

    def at(value: float) -> int:
        return round((max(-reach, min(reach, value)) + reach) / (2 * reach) * (width - 1))

    start, end = (0 if low is None else at(low)), (width - 1 if high is None else at(high))
    for position in range(start, end + 1):
        cells[position] = "─"
    cells[at(0.0)] = "┼" if start < at(0.0) < end else "│"
    cells[start] = "◄" if low is None else "├"
    cells[end] = "►" if high is None else "┤"
    cells[at(middle)] = "●"
    return "".join(cells)


def name(text: str | None, limit: int = 60) -> str:
    """A name that others chose, harmless; `–` where there is none."""
    return one_line(text, limit) if text else UNKNOWN


def join(pieces: Sequence[Text | str], between: str = " · ") -> Text:
    """Pieces in one line; empty ones are left out."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for piece in pieces:
        if not piece:
            continue
        if line:
            line.append(between, "dim")
        if isinstance(piece, str):
            line.append(piece)
        else:
            line.append_text(piece)
    return line


def cut(line: Text, width: int) -> Text:
    """A line that is at most `width` cells wide."""
    shown = line.copy()
    shown.truncate(width, overflow="ellipsis")
    shown.no_wrap = True
    return shown


def next_steps(sentence: str, *steps: tuple[str, str]) -> Text:
    """What an empty view says: a sentence, and commands with what they do."""
    text = Text(f" {sentence}\n")
    widest = max((len(command) for command, _ in steps), default=0)
    for command, why in steps:
        text.append("\n   ")
        text.append(command.ljust(widest + 3), "bold")
        text.append(why, "dim")
    return text
