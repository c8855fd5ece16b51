"""A context as a foldable tree of lines."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from rich.text import Text

from orchestrator.watch.context_tree import Node
from orchestrator.watch.panels_detail import node_label
from orchestrator.watch.sources import fold_text

INDENT = 2
GUTTER = " │ "  # before every line of a text, so that none can look like an element
OPEN_TEXT = 400  # lines of an element's text that are unfolded by itself


@dataclass(frozen=True)
class _Row:
    """A line of the tree: an element, or a line of its text."""

    path: tuple[int, ...]
    node: Node
    text: str | None = None
    number: int = 0


class Tree:
    """What is new is unfolded, the rest is a line each. What a person folds stays so in the next iteration too."""

    def __init__(self) -> None:
        self.root: Node | None = None
        self._by_hand: dict[tuple[str, ...], bool] = {}
        self._rows: list[_Row] = []
        self._width = 0
        self._all: bool | None = None
        self._texts: dict[int, tuple[int, list[str]]] = {}

    def fill(self, root: Node | None) -> Tree:
        """Another context."""
        if root is not self.root:
            self.root = root
            self._texts.clear()
            self._width = 0
        return self

    def fold(self, width: int) -> None:
        """Make the lines for this width."""
        if width != self._width:
            self._width = width
            self._flatten()

    def toggle(self, n: int, *, unfold: bool | None = None) -> int:
        """Fold or unfold what line `n` belongs to; returns the line of that element."""
        if not 0 <= n < len(self._rows):
            return n
        row = self._rows[n]
        names = self._names(row.path)
        opened = self._is_open(row.node, names)
        if unfold is False and (not opened or not _inside(row.node)) and row.text is None and row.path:
            row = _Row(row.path[:-1], self._node(row.path[:-1]))  # a folded one: its parent
            names = self._names(row.path)
        self._by_hand[names] = not opened if unfold is None else unfold
        self._flatten()
        return next((k for k, each in enumerate(self._rows) if each.path == row.path and each.text is None), n)

    def toggle_all(self) -> None:
        """Unfold everything, fold everything, as at the beginning; in turn."""
        self._all = {None: True, True: False, False: None}[self._all]
        self._by_hand.clear()
        self._flatten()

    def first_new(self) -> int:
        """The line of the first element that the context before did not have."""
        return next((n for n, row in enumerate(self._rows) if row.path and row.node.new), 0)

    def _flatten(self) -> None:
        self._rows = list(self._walk(self.root, (), ())) if self.root is not None else []

    def _walk(self, node: Node, path: tuple[int, ...], names: tuple[str, ...]) -> Iterator[_Row]:
        names = (*names, f"{path[-1] if path else 0} {node.title}")
        yield _Row(path, node)
        if not self._is_open(node, names):
            return
        if node.text:
            for number, line in enumerate(self._folded(node, len(path))):
                yield _Row(path, node, line, number)
        for index, child in enumerate(node.children):
            yield from self._walk(child, (*path, index), names)

    def _folded(self, node: Node, depth: int) -> list[str]:
        width = max(8, self._width - INDENT * depth - len(GUTTER))
        kept = self._texts.get(id(node))
        if kept is None or kept[0] != width:
            kept = self._texts[id(node)] = (width, fold_text(node.text.strip("\n"), width))
        return kept[1]

    def _is_open(self, node: Node, names: tuple[str, ...]) -> bool:
        by_hand = self._by_hand.get(names)
        if by_hand is not None:
            return by_hand
        if self._all is not None:
            return self._all
        return len(names) == 1 or (node.new and node.text.count("\n") < OPEN_TEXT)

    def _node(self, path: tuple[int, ...]) -> Node:
        assert self.root is not None
        node = self.root
        for index in path:
            node = node.children[index]
        return node

    def _names(self, path: tuple[int, ...]) -> tuple[str, ...]:
        assert self.root is not None
        names, node = [f"0 {self.root.title}"], self.root
        for index in path:
            node = node.children[index]
            names.append(f"{index} {node.title}")
        return tuple(names)

    # -- a source of lines

    def __len__(self) -> int:
        return len(self._rows)

    def line(self, n: int, width: int) -> Text:
        """An element or a line of its text, indented."""
        row = self._rows[n]
        indent = " " * (INDENT * len(row.path))
        if row.text is not None:
            return Text(f"{indent}{GUTTER}{row.text}", end="", no_wrap=True)
        opened = self._is_open(row.node, self._names(row.path))
        label = node_label(row.node, max(8, width - len(indent)), folded=not opened and _inside(row.node))
        return Text(indent, end="", no_wrap=True) + label

    def key(self, n: int) -> Hashable:
        """The element's place, and which line of it."""
        row = self._rows[n]
        return (row.path, row.text is not None, row.number)

    def header(self, width: int) -> Text | None:
        """None."""
        return None


def _inside(node: Node) -> bool:
    return bool(node.children or node.text)
