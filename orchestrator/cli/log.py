"""`sia log show|diff|verify|export`: what the journals hold. Data on stdout, prose on stderr."""

from __future__ import annotations

import codecs
import json as jsonlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from orchestrator import trajectory
from orchestrator.answers import answered
from orchestrator.cli.options import Json
from orchestrator.errors import UsageError
from orchestrator.exchanges import ExchangeStore
from orchestrator.home import open_home
from orchestrator.journal import Exchange, Journal
from orchestrator.journal_names import find_journal, trial_of
from orchestrator.log_archive import LogArchive
from orchestrator.own_logs import kept_logs
from orchestrator.untrusted import one_line, printable

Name = Annotated[str, Parameter(help="A trial's id, its unique beginning, or `main`; `ID~1` is an earlier attempt.")]


def show(
    trial: Name,
    number: Annotated[int | None, Parameter(help="One exchange, whole, as `<iteration>` XML.")] = None,
    /,
    *,
    everything: Annotated[bool, Parameter(name="--all", negative="", help="Also token counts and limits.")] = False,
    own: Annotated[
        bool, Parameter(negative="", help="The agent's own iteration log instead: what it wrote, not what was asked.")
    ] = False,
    json: Json = False,
) -> int:
    """Show the exchanges of a trial or of the main instance, or one of them in full.

    Exchanges are numbered as in the journal, where token counts have numbers too; `sia watch --iteration` counts
    inferences alone.
    """
    with _journals() as store:
        journal = _open(store, trial)
        if own:
            return _show_own(journal, number)
        if number is not None:
            exchange = _exchange(journal, number)
            print(_dump(_as_json(exchange, full=True)) if json else trajectory.iteration_xml(exchange))
            return 0
        shown = (one for one in journal.replies() if everything or one.kind in ("infer", "refused"))
        if json:
            rows = [_as_json(one, full=False) for one in shown]
            print(_dump({"journal": journal.id, "meta": dict(journal.meta), "exchanges": rows}))
            return 0
        print(f"{journal.id}: {_label(journal)}", file=sys.stderr)
        for one in shown:
            print(_line(one))
    return 0


def diff(
    left: Name,
    right: Name,
    /,
    *,
    context: Annotated[int, Parameter(help="Lines of the difference in context to show.")] = 40,
    json: Json = False,
) -> int:
    """Compare the journals of two trials: which answers agree, and what was shown where they part."""
    with _journals() as store:
        journals = [_open(store, name) for name in (left, right)]
        replies = [list(journal.replies()) for journal in journals]
        runs = trajectory.compare(*replies)
        if json:
            print(_dump({"left": journals[0].id, "right": journals[1].id, "runs": [asdict(run) for run in runs]}))
            return 0
        for sign, journal, side in zip("-+", journals, replies, strict=True):
            print(f"{sign} {journal.id}: {_label(journal)} · {_totals(side)}")
        for run in runs:
            _print_run(run)
        parted = [next((run.numbers[0] for run in runs if run.kind == kind), None) for kind in ("left", "right")]
        if parted[0] is not None and parted[1] is not None:
            print("\nwhat the two were shown where they first part:")
            pair = [_exchange(journal, n) for journal, n in zip(journals, parted, strict=True) if n is not None]
            lines = trajectory.context_difference(pair[0], pair[1], max(0, context))
            print("\n".join(one_line(line, 160) for line in lines) or "the same")
    return 0


def verify(*trials: Annotated[Name, Parameter(required=False)], json: Json = False) -> int:
    """Check journals (without names: all): every hash, the chain, the head in the database. Exit code 1 on a fault."""
    rows: list[dict[str, Any]] = []
    with _journals() as store:
        names = [_open(store, name).id for name in trials] or [name for name, _ in Journal.names(store)]
        for name in names:
            found = Journal.open(store, name).verify()
            rows.append({"journal": name, **asdict(found)})
            if not json:
                state = "sealed" if found.sealed else f"open, {found.covered} under the head"
                state += "; chain only, its texts were removed by `sia gc`" if found.collected else ""
                print(
                    f"{name}: {'FAULT: ' + found.problem if found.problem else 'ok'} ({found.entries} entries, {state})"
                )
    if json:
        print(_dump(rows))
    elif not rows:
        print("There are no journals yet.", file=sys.stderr)
    return 1 if any(row["problem"] for row in rows) else 0


def export(
    trial: Name,
    /,
    *,
    output: Annotated[Path | None, Parameter(name=["--output", "-o"], help="A file instead of stdout.")] = None,
) -> int:
    """Export a trajectory in the Agent Trajectory Interchange Format (JSON)."""
    with _journals() as store:
        text = _dump(trajectory.trajectory(_open(store, trial)))
    if output is None:
        print(text)
        return 0
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"can't be written: {error.strerror}", where=str(output), fix="name another file") from None
    print(output, file=sys.stderr)
    return 0


def _show_own(journal: Journal, number: int | None) -> int:
    """The agent's own logs of a finished trial: their names, or one byte for byte (to a terminal: made harmless)."""
    meta, id = journal.meta, trial_of(journal.id)
    if meta.get("kind") != "trial":
        raise UsageError("only finished trials have compressed logs", fix="main's are in its /root/data/iterations")
    file = kept_logs(open_home().campaigns / str(meta["campaign"]) / "trials" / id)
    if not file.exists():
        raise UsageError(f"{id} has no log of its own", where=str(file), fix="`sia log show ID` shows the journal")
    archive = LogArchive(file)
    if number is None:
        print("\n".join(one_line(name, 120) for name in archive.names))
        for cut in archive.cuts:
            print(one_line(cut, 300), file=sys.stderr)
        return 0
    name = f"{number:08d}.xml"
    if name not in archive.names:
        what = "; ".join([f"{id} has no own log of iteration {number}", *(one_line(cut, 300) for cut in archive.cuts)])
        raise UsageError(what, fix=f"`sia log show {id} --own` lists them")
    harmless = codecs.getincrementaldecoder("utf-8")("replace") if sys.stdout.isatty() else None
    for piece in archive.pieces(name):
        if harmless is None:
            sys.stdout.buffer.write(piece)
        else:
            print(printable(harmless.decode(piece)), end="")
    sys.stdout.flush()
    if missing := archive.missing(name):
        print(f"{missing:,} bytes are missing at its end: they were not kept", file=sys.stderr)
    return 0


@contextmanager
def _journals() -> Iterator[ExchangeStore]:
    home = open_home()
    store = ExchangeStore(home.exchanges, home.database)
    try:
        yield store
    finally:
        store.close()


def _open(store: ExchangeStore, name: str) -> Journal:
    return Journal.open(store, find_journal(store, name))


def _exchange(journal: Journal, number: int) -> Exchange:
    exchange = journal.get(number)
    if exchange is None:
        raise UsageError(f"{journal.id} has no exchange {number}", fix=f"`sia log show {journal.id} --all` lists them")
    return exchange


def _label(journal: Journal) -> str:
    meta = journal.meta
    parts = [f"{name} {meta[name]}" for name in ("arm", "task", "repeat") if name in meta]
    return one_line(" · ".join(parts) or str(meta.get("kind", "")), 120)


def _line(one: Exchange) -> str:
    usage = one.usage
    tokens = f"{usage.prompt or '?'}+{usage.completion or '?'}" if usage else "-"
    text = one.asked.prefix + one.reply + (f" ! {one.error}" if one.error else "")
    return f"{one.n:>5}  {one.kind:<7}  {one.seconds:>7.3f} s  {tokens:>12} tokens  {one_line(text, 100)}"


def _totals(side: list[Exchange]) -> str:
    usages = [one.usage for one in side if one.usage and one.kind == "infer"]
    tokens = sum((usage.prompt or 0) + (usage.completion or 0) for usage in usages)
    return f"{sum(answered(one) for one in side)} iterations, {tokens:,} tokens"


def _print_run(run: trajectory.Run) -> None:
    if run.kind == "same":
        last = f"–{run.numbers[-1]}" if len(run.numbers) > 1 else ""
        print(f"  {run.numbers[0]}{last}: {len(run.numbers)} equal")
        return
    sign = "-" if run.kind == "left" else "+"
    for number, answer in zip(run.numbers, run.answers, strict=True):
        print(f"{sign} {number}: {one_line(answer, 110)}")


def _as_json(one: Exchange, *, full: bool) -> dict[str, Any]:
    value = asdict(one)
    if not full:
        value["asked"] = {name: value["asked"][name] for name in ("size", "sha256", "seed", "max_tokens")}
    return value


def _dump(value: Any) -> str:
    """JSON in ASCII: nothing in it can move a terminal."""
    return jsonlib.dumps(value, indent=2)
