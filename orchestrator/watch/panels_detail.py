"""One instance, iteration by iteration: context, answer, effect, conversation."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from orchestrator.journal import Exchange
from orchestrator.trajectory import prompt
from orchestrator.untrusted import one_line
from orchestrator.watch import marks
from orchestrator.watch.columns import Column
from orchestrator.watch.context_tree import Node, tree
from orchestrator.watch.iterations import Iterations, Line, Live, Message
from orchestrator.watch.texts import block

_LATEST = 12  # iterations in the list of a printed detail


def _tokens(line: Line) -> Text:
    if line.prompt is None and line.completion is None:
        return Text(marks.UNKNOWN, "dim")
    return Text(f"{marks.count(line.prompt)}+{marks.count(line.completion)}")


def _action(line: Line) -> Text:
    if line.kind == "refused":
        return Text("refused", "yellow")
    return Text(marks.name(line.action, 40) if line.action else "no action", "bold" if line.action else "yellow")


def _said(line: Line) -> Text:
    text = Text(line.text)
    return text.append(f"  ! {line.error}", "red") if line.error else text


LINES: tuple[Column[Line], ...] = (
    Column("n", "iter", lambda one: Text(str(one.n), "bold"), 5, right=True),
    Column("time", "time", lambda one: Text(marks.clock(one.time), "dim"), 11, from_width=90),
    Column("action", "action", _action, 12),
    Column("text", "answer", _said, 20, flexible=True),
    Column("seconds", "took", lambda one: Text(f"{one.seconds:.1f}s"), 7, right=True),
    Column("tokens", "tokens", _tokens, 11, right=True, from_width=70),
)


def who(iterations: Iterations) -> Text:
    """What the journal is of, in a line."""
    meta = iterations.meta
    pieces: list[Text | str] = [Text(iterations.id, "bold")]
    if iterations.trial is None:
        pieces += ["main", f"commit {str(meta.get('commit'))[:12]}"]
    else:
        pieces += [marks.name(str(meta[name]), 60) for name in ("task", "arm") if name in meta]
        pieces.append(f"repeat {meta.get('repeat')}")
    pieces.append(Text(iterations.result or "ended", "dim") if iterations.sealed else Text("at work", "green"))
    return marks.join(pieces)


def head(iterations: Iterations, n: int, exchange: Exchange | None, width: int) -> Text:
    """Which iteration of how many, when, how long it took, tokens, error."""
    second: list[Text | str] = [Text(f"iteration {n} of {iterations.count}", "bold")]
    if exchange is None:
        second = [Text("no iteration yet: nothing was asked so far", "dim")] if not iterations.count else second
    else:
        second += [marks.clock(exchange.time), f"{exchange.seconds:.2f} s"]
        usage = exchange.usage
        if usage is not None:
            second.append(f"{marks.count(usage.prompt)}+{marks.count(usage.completion)} tokens")
            second.append("" if usage.cost is None else marks.money(usage.cost))
        second.append(f"context {marks.size(len(prompt(exchange)))}")
        second.append("" if exchange.finish == "stop" else Text(f"ended by {one_line(exchange.finish, 20)}", "yellow"))
        second.append(Text(f"! {one_line(exchange.error, 200)}", "red") if exchange.error else "")
    lines = [Text(" ").append_text(who(iterations)), Text(" ").append_text(marks.join(second))]
    return Text("\n", no_wrap=True).join([marks.cut(each, width) for each in lines])


# -- the context ----------------------------------------------------------------------------------------------------


def node_label(node: Node, width: int, *, folded: bool) -> Text:
    """A node of the context in one line: mark, title, size, beginning. `+` marks what is new in this iteration."""
    holds = bool(node.children or node.text)
    label = Text("+" if node.new else " ", "green", no_wrap=True)
    label.append(("▸ " if folded else "▾ ") if holds else "  ", "dim")
    tag, _, attributes = node.title.partition(" ")
    label.append(tag, "bold")
    label.append(f" {attributes}" if attributes else "", "cyan")
    label.append(f"  {marks.size(node.size)}" if node.size >= 1000 else "", "dim")
    if folded and node.summary:
        label.append(f"  {node.summary}", "dim")
    return marks.cut(label, width)


def context(node: Node, width: int, *, lines: int = 200, depth: int = 5) -> RenderableType:
    """The tree as text: new entries with their content, others folded into a line each."""
    shown: list[Text] = []
    for row in _unfolded(node, width, 0, depth, max(3, lines // 4)):
        if len(shown) == lines:
            shown.append(Text(" … more", "dim"))
            break
        shown.append(row)
    return Text("\n", no_wrap=True, overflow="crop").join(shown)


def _unfolded(node: Node, width: int, level: int, depth: int, most: int) -> Iterator[Text]:
    opened = level == 0 or (node.new and level < depth)
    indent = " " + "  " * level
    yield Text(indent).append_text(node_label(node, width - len(indent), folded=not opened))
    if not opened:
        return
    inner = indent + "    "
    if node.text:
        yield from block(node.text, width, most, indent=inner).split("\n")
    for child in node.children:
        yield from _unfolded(child, width, level + 1, depth, most)


# -- texts ----------------------------------------------------------------------------------------------------------


def answer(exchange: Exchange, width: int, *, lines: int = 200) -> RenderableType:
    """What was answered; an error where it was one."""
    parts: list[RenderableType] = []
    if exchange.error:
        parts.append(block(f"error: {exchange.error}", width, 10, "red"))
    text = exchange.asked.prefix + exchange.reply
    if text:
        parts.append(block(text, width, lines))
    elif not exchange.error:
        parts.append(Text(" an empty answer", "dim"))
    return Group(*parts)


def effect(text: str | None, width: int, *, lines: int = 200) -> RenderableType:
    """What came of it."""
    if text is None:
        return Text(" Nothing is known yet: it shows in the context of the next iteration.", "dim")
    return block(text, width, lines) if text.strip() else Text(" nothing new in the next context", "dim")


def live(now: Live | None, width: int, *, lines: int = 20) -> RenderableType:
    """What is asked or answered at this moment."""
    if now is None:
        return Text(" Nothing is asked at this moment.", "dim")
    since = marks.span(time.time() - now.asked)
    said = {
        "asking": f"asked {since} ago; no answer has begun",
        "answering": f"answering for {since}: {len(now.answer):,} characters so far",
        "working": "the answer is complete; the instance works on it",
    }.get(now.state, one_line(now.state, 40))
    title = marks.cut(Text(f" exchange {now.n}: {said}", "bold"), width)
    return Group(title, block(now.answer, width, lines, tail=True)) if now.answer else title


def conversation(sent: Sequence[Message], output: str, width: int, *, lines: int = 200) -> RenderableType:
    """stdin and stdout."""
    parts: list[RenderableType] = []
    for message in sent:
        when = f" {marks.clock(message.time)}" if message.time is not None else ""
        parts.append(Text(f" in   {marks.name(message.who, 20)}{when}", "bold cyan"))
        parts.append(block(message.text.rstrip("\n"), width, max(5, lines // 4), indent="   "))
    parts.append(Text(" out  the instance's answers for its user", "bold green"))
    if output.strip():
        parts.append(block(output.rstrip("\n"), width, lines, indent="   ", tail=True))
    else:
        parts.append(Text("   nothing so far", "dim"))
    return Group(*parts)


def log(text: str, width: int, *, lines: int = 200) -> RenderableType:
    """stderr: the agent's own log, its end."""
    return block(text.rstrip("\n"), width, lines, tail=True) if text.strip() else Text(" nothing so far", "dim")


def iteration(iterations: Iterations, n: int, width: int, *, lines: int = 200) -> RenderableType:
    """All of one iteration, for `--once` and for reading on paper."""
    from orchestrator.watch.columns import table

    if not iterations.count:
        return head(iterations, 0, None, width)
    exchange = iterations.get(n)
    before = prompt(iterations.get(n - 1)) if n > 1 else None
    parts: list[RenderableType] = [head(iterations, n, exchange, width), Text()]
    parts += [Text(" context", "bold"), context(tree(prompt(exchange), before), width, lines=lines), Text()]
    parts += [Text(" answer", "bold"), answer(exchange, width, lines=lines), Text()]
    parts += [Text(" effect", "bold"), effect(iterations.effect(n), width, lines=lines), Text()]
    parts += [Text(" conversation", "bold"), conversation(iterations.stdin(), iterations.stdout(), width, lines=lines)]
    parts += [Text(), Text(" iterations", "bold"), table(LINES, iterations.lines(n - _LATEST + 1, n), width)]
    return Group(*parts)
