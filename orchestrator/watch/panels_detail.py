"""One instance, iteration by iteration: context, answer, effect, conversation."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.text import Text

from orchestrator.journal import Exchange
from orchestrator.watch.columns import Column
from orchestrator.watch.context_tree import Node
from orchestrator.watch.iterations import Iterations, Line, Live, Message

LINES: tuple[Column[Line], ...] = ()


def head(iterations: Iterations, n: int, exchange: Exchange | None, width: int) -> Text:
    """Which iteration of how many, when, how long it took, tokens, error."""
    raise NotImplementedError


def node_label(node: Node, width: int, *, folded: bool) -> Text:
    """A node of the context in one line: mark, title, size, beginning."""
    raise NotImplementedError


def context(node: Node, width: int, *, lines: int = 200, depth: int = 2) -> RenderableType:
    """The tree as text: new entries with their content, others folded into a line each."""
    raise NotImplementedError


def answer(exchange: Exchange, width: int, *, lines: int = 200) -> RenderableType:
    """What was answered; an error where it was one."""
    raise NotImplementedError


def effect(text: str | None, width: int, *, lines: int = 200) -> RenderableType:
    """What came of it."""
    raise NotImplementedError


def live(now: Live | None, width: int, *, lines: int = 20) -> RenderableType:
    """What is asked or answered at this moment."""
    raise NotImplementedError


def conversation(sent: Sequence[Message], output: str, width: int, *, lines: int = 200) -> RenderableType:
    """stdin and stdout."""
    raise NotImplementedError


def iteration(iterations: Iterations, n: int, width: int, *, lines: int = 200) -> RenderableType:
    """All of one iteration, for `--once` and for reading on paper."""
    raise NotImplementedError
