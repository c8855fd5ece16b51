"""A campaign's report: Markdown for a pull request, and one HTML file with everything in it. Pure up to `write`.

Every name, detail and reason is other people's text: `one_line` first, then escaped for the format.
"""

from __future__ import annotations

import html
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator import durable, panels, report_figures
from orchestrator.errors import ConfigError
from orchestrator.plan import count, visible
from orchestrator.untrusted import one_line

if TYPE_CHECKING:
    from orchestrator.campaign_view import CampaignView
    from orchestrator.home import Home

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; color: #1f2328; }
table { border-collapse: collapse; margin: 1rem 0; } th, td { border: 1px solid #d0d7de; padding: .3rem .6rem; }
th { background: #f6f8fa; text-align: left; } td.n { text-align: right; font-variant-numeric: tabular-nums; }
td { overflow-wrap: anywhere; } svg { max-width: 100%; height: auto; } .note { color: #57606a; }
.better { color: #1a7f37; font-weight: 600; } .worse { color: #cf222e; font-weight: 600; }
.equivalent { color: #0969da; } .inconclusive { color: #9a6700; } .disqualified { color: #8250df; font-weight: 600; }
"""
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Written:
    """Where a report lies."""

    html: Path
    markdown: Path


@dataclass(frozen=True)
class _Grid:
    """A table as plain text, for both formats. `numbers` are the right-aligned columns."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()


def write(home: Home, view: CampaignView) -> Written:
    """Write `report.html` and `report.md` into the campaign's directory, each whole or not at all."""
    directory = home.campaigns / view.id
    written = Written(directory / "report.html", directory / "report.md")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        durable.write(written.html, as_html(view).encode())
        durable.write(written.markdown, as_markdown(view).encode())
    except OSError as error:
        fix = "free disk space or make the directory writable"
        raise ConfigError(f"the report can't be written: {error.strerror}", where=str(directory), fix=fix) from None
    return written


def as_markdown(view: CampaignView) -> str:
    """The report as Markdown (tables, no figures)."""
    parts = [f"# Campaign {view.id}", *(_md(line) for line in _introduction(view))]
    for grid in _grids(view):
        align = ["---:" if number in grid.numbers else "---" for number in range(len(grid.head))]
        head, *rows = [tuple(_md(cell) for cell in row) for row in (grid.head, *grid.rows)]
        lines = [f"| {' | '.join(row)} |" for row in (head, align, *rows)]
        parts += [f"## {grid.title}", "\n".join(lines)]
    parts += [_md(line) for line in _notes(view)]
    return "\n\n".join(parts) + "\n"


def as_html(view: CampaignView) -> str:
    """The report as one HTML page: no script, no request to anywhere."""
    head = f"Campaign {html.escape(view.id)}"
    parts = [f"<h1>{head}</h1>", *(f"<p>{html.escape(line)}</p>" for line in _introduction(view))]
    figures = [report_figures.differences(view.verdicts, view.spec["verdict"]["margin"]), report_figures.heatmap(view)]
    for grid, figure in zip(_grids(view), [*figures, "", "", ""], strict=False):
        parts += [f"<h2>{html.escape(grid.title)}</h2>", figure, _html_table(grid)]
    parts += [f'<p class="note">{html.escape(line)}</p>' for line in _notes(view)]
    policy = f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{policy}<title>{head}</title>'
        f"<style>{STYLE}</style></head><body>\n" + "\n".join(part for part in parts if part) + "\n</body></html>\n"
    )


def _introduction(view: CampaignView) -> list[str]:
    rules, repeats = view.spec["verdict"], view.spec["repeats"]
    started = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(view.created))
    took = f", took {view.finished - view.created:.0f} s" if view.finished else ""
    judged = sum(arm.refused is None for arm in view.candidates)
    size = visible(judged, len(view.tasks), repeats, rules["alpha"], rules["margin"])
    where = f"From {one_line(view.file)}, started {started}{took}; state: {view.state}"
    what = f"{view.done} of {len(view.trials)} trials done. Seed {view.spec['seed']}, {count(repeats, 'repeat')}"
    return [f"{where}, {what}. Baseline: {view.baseline}.", " ".join(size.sentences())]


def _grids(view: CampaignView) -> list[_Grid]:
    return [_verdicts(view), _rewards(view), _guardrails(view), _arms(view), _trials(view)]


def _verdicts(view: CampaignView) -> _Grid:
    rows = [
        (
            one_line(arm, 60),
            v["verdict"],
            panels.difference(v),
            _number(v["p"]),
            _number(v["p_adjusted"]),
            _number(v["p_equivalent"]),
            f"{v['wins']} / {v['losses']} / {v['ties']}" if v["tasks"] else "–",
            f"{v['excluded']} of {v['pairs']}" if v["pairs"] else "–",
            "; ".join(one_line(reason, 600) for reason in v["reasons"]),
        )
        for arm, v in view.verdicts.items()
    ]
    head = ("candidate", "verdict", "difference [interval]", "p", "p (Holm)", "p (equivalence)", "won / lost / tied")
    return _Grid("Verdicts", (*head, "excluded pairs", "why"), tuple(rows), frozenset(range(2, 8)))


def _rewards(view: CampaignView) -> _Grid:
    rows = [
        (
            one_line(task.name, 60) + panels.forgeability_mark(view, task.name),
            *(_number(view.mean_reward(arm.name, task.name)) for arm in view.arms),
        )
        for task in view.tasks
    ]
    rows.append(("mean over trials", *(_number(view.mean_reward(arm.name)) for arm in view.arms)))
    head = ("task", *(one_line(arm.name, 60) for arm in view.arms))
    return _Grid("Mean reward by task", head, tuple(rows), frozenset(range(1, len(head))))


def _guardrails(view: CampaignView) -> _Grid:
    rows = [
        (
            one_line(arm, 60),
            guardrail["name"].replace("_", " "),
            _number(guardrail["baseline"]),
            _number(guardrail["candidate"]),
            panels.factor(guardrail),
            _number(guardrail["tolerance"]),
            "broken" if guardrail["broken"] else ("kept" if guardrail["tolerance"] is not None else "not judged"),
            one_line(guardrail["note"]),
        )
        for arm, verdict in view.verdicts.items()
        for guardrail in verdict["guardrails"]
    ]
    head = ("candidate", "guardrail", "baseline", "candidate's", "factor", "tolerance", "result", "note")
    return _Grid("Guardrails (totals over the compared trials)", head, tuple(rows), frozenset((2, 3, 4, 5)))


def _arms(view: CampaignView) -> _Grid:
    rows = [
        (
            one_line(arm.name, 60),
            arm.proposed[:12],
            arm.judged[:12],
            arm.tree[:12],
            ", ".join(one_line(path, 80) for path in arm.left_out) or "–",
        )
        for arm in view.arms
    ]
    head = ("arm", "proposed commit", "judged commit", "tree", "changed outside the agent paths (not judged)")
    return _Grid("What ran", head, tuple(rows))


def _trials(view: CampaignView) -> _Grid:
    rows = []
    for trial in view.trials:
        record: dict[str, Any] = trial.record or {}
        detail = "; ".join(one_line(text, 300) for text in (trial.detail, trial.disqualified) if text)
        rows.append(
            (
                trial.id,
                one_line(trial.arm, 60),
                one_line(trial.task, 60),
                str(trial.repeat),
                (trial.outcome or trial.state) + (f" (attempt {trial.attempt})" if trial.attempt > 1 else ""),
                _number(trial.reward),
                _number(record.get("iterations")),
                _number(record.get("tokens")),
                _number(record.get("seconds")),
                one_line(record.get("memory_enforcer", "–")),
                detail or "–",
            )
        )
    head = ("trial", "arm", "task", "repeat", "outcome", "reward", "iterations", "tokens", "seconds", "memory bound by")
    return _Grid("Trials", (*head, "detail"), tuple(rows), frozenset((3, 5, 6, 7, 8)))


def _notes(view: CampaignView) -> list[str]:
    notes = [f"{note}." for note in (*panels.forgeability_notes(view), *(one_line(line, 400) for line in view.unasked))]
    if view.error:
        notes.append(f"Error: {one_line(view.error, 400)}")
    seen = {one_line(note, 200) for t in view.trials if t.record for note in t.record.get("notes", ())}
    return [*notes, *(f"Note: {note}" for note in sorted(seen)[:20])]


def _number(value: float | int | None) -> str:
    if value is None:
        return "–"
    return str(int(value)) if value == int(value) else f"{value:.4g}"


def _md(text: str) -> str:
    """Text that no Markdown reader takes for markup, a table border, a link or HTML."""
    return re.sub(r"([\\`*_{}\[\]<>#|~$&@])", r"\\\1", text).replace("://", ":\u2060//")


def _html_table(grid: _Grid) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in grid.head)
    rows = []
    for row in grid.rows:
        cells = []
        for number, cell in enumerate(row):
            style = "n" if number in grid.numbers else cell if cell in report_figures.COLOURS else ""
            cells.append(f"<td{f' class={chr(34)}{style}{chr(34)}' if style else ''}>{html.escape(cell)}</td>")
        rows.append(f"<tr>{''.join(cells)}</tr>")
    return f"<table><tr>{head}</tr>{''.join(rows)}</table>" if rows else ""
