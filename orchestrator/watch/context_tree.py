"""A context, or an answer, as a tree that can be folded. The text is hostile: it may be no XML at all."""

from __future__ import annotations

from dataclasses import dataclass

MAX_NODES = 5000
MAX_DEPTH = 24


@dataclass(frozen=True)
class Node:
    """One element. All texts are harmless (`untrusted.printable`); `text` may be long and have many lines.

    `title`: tag and attributes in one line. `summary`: the beginning of what it holds, one line. `new`: it was not in
    the context before.
    """

    title: str
    tag: str
    summary: str
    text: str
    size: int  # characters
    new: bool
    children: tuple[Node, ...] = ()


def tree(text: str, before: str | None = None) -> Node:
    """The tree of a context. `before`: the context of the iteration before, to tell what is new (None: all is).

    What is no XML becomes one node with its text.
    """
    raise NotImplementedError
