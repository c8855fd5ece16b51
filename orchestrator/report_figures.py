"""The figures of a campaign report, as SVG text. No display, no global state of matplotlib, no pyplot."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from orchestrator.campaign_view import CampaignView

COLOURS = {
    "better": "#1a7f37",
    "worse": "#cf222e",
    "equivalent": "#0969da",
    "inconclusive": "#9a6700",
    "disqualified": "#8250df",
}


def differences(verdicts: Mapping[str, Mapping[str, Any]], margin: float) -> str:
    """Mean difference and interval of each candidate that could be compared; unbounded sides end at the edge."""
    shown = {arm: v for arm, v in verdicts.items() if v["difference"] is not None and v["p"] is not None}
    if not shown:
        return ""
    bounds = [v[key] for v in shown.values() for key in ("low", "high", "difference") if v[key] is not None]
    edge = max(0.2, *(1.15 * abs(bound) for bound in bounds))
    figure, axes = _figure(7.5, 0.9 + 0.4 * len(shown))
    axes.axvspan(-margin, margin, color="#d0d7de", alpha=0.5, linewidth=0)
    axes.axvline(0, color="#57606a", linewidth=1)
    for row, verdict in enumerate(shown.values()):
        colour = COLOURS[verdict["verdict"]]
        low = verdict["low"] if verdict["low"] is not None else -edge
        high = verdict["high"] if verdict["high"] is not None else edge
        axes.plot([low, high], [row, row], color=colour, linewidth=3, solid_capstyle="butt")
        axes.plot([verdict["difference"]], [row], "o", color=colour, markersize=8)
    axes.set_xlim(-edge, edge)
    axes.set_ylim(len(shown) - 0.5, -0.5)
    _ticks(axes, "y", [f"{arm} ({verdict['verdict']})" for arm, verdict in shown.items()])
    axes.set_xlabel("difference in mean reward (candidate − baseline)")
    return _svg(figure, "Differences in mean reward with their intervals")


def heatmap(view: CampaignView) -> str:
    """Mean reward of every arm on every task."""
    arms, tasks = [arm.name for arm in view.arms], [task.name for task in view.tasks]
    cells = [[view.mean_reward(arm, task) for task in tasks] for arm in arms]
    figure, axes = _figure(2.5 + 0.55 * len(tasks), 2.4 + 0.4 * len(arms))
    values = [[float("nan") if cell is None else cell for cell in row] for row in cells]
    x, y = range(len(tasks) + 1), range(len(arms) + 1)  # drawn as shapes: an image would need a data: URL
    axes.pcolormesh([i - 0.5 for i in x], [i - 0.5 for i in y], values, cmap="RdYlGn", vmin=-0.6, vmax=1.6)
    axes.set_ylim(len(arms) - 0.5, -0.5)
    for line, row in enumerate(cells):
        for column, cell in enumerate(row):
            label = "–" if cell is None else f"{cell:.2f}"
            axes.text(column, line, label, ha="center", va="center", fontsize=8)
    _ticks(axes, "x", tasks, rotation=45, ha="right")
    _ticks(axes, "y", arms)
    return _svg(figure, "Mean reward of every candidate on every task")


def _figure(width: float, height: float) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()


def _ticks(axes: Axes, which: str, names: Sequence[str], **style: Any) -> None:
    """Names of other people as tick labels: without control characters, and never read as mathematics."""
    labels = [one_line(name, 32) for name in names]
    if which == "x":
        axes.set_xticks(range(len(labels)), labels, parse_math=False, **style)
    else:
        axes.set_yticks(range(len(labels)), labels, parse_math=False, **style)


def _svg(figure: Figure, title: str) -> str:
    """The drawing as an `<svg>` element for use inside HTML; the same data give the same bytes."""
    import matplotlib

    target = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": "sia", "svg.fonttype": "none"}):
        figure.savefig(target, format="svg", metadata={"Date": None, "Title": title, "Creator": None})
    text = target.getvalue()
    return text[text.index("<svg") :]
