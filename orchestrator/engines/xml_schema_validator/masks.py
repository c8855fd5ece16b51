"""Which tokens of a vocabulary may come next: for samplers that take a mask instead of a grammar.

Tokens are bytes and may end inside a character, so a position is a state of the automaton and the bytes of a character
that has begun.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from orchestrator.engines.xml_schema_validator.automaton import Automaton

_REMEMBERED = 4096  # positions


@dataclass(frozen=True)
class Position:
    """Where an answer stands. `partial` are the first bytes of a character."""

    state: int = 0
    partial: bytes = b""


@dataclass
class _Node:
    """A node of the vocabulary's tree of bytes."""

    tokens: list[int] = field(default_factory=list)
    after: dict[int, _Node] = field(default_factory=dict)


class TokenMasks:
    """Masks for one automaton and one vocabulary (the bytes of each token; an empty one is never allowed).

    Not thread-safe. The first mask of a position costs a walk over all tokens that fit, later ones a look-up.
    """

    def __init__(self, automaton: Automaton, vocabulary: Sequence[bytes]) -> None:
        self._automaton = automaton
        self._vocabulary = vocabulary
        self._tree = _Node()
        self._known: dict[Position, frozenset[int]] = {}
        for token, content in enumerate(vocabulary):
            if content:
                node = self._tree
                for byte in content:
                    node = node.after.setdefault(byte, _Node())
                node.tokens.append(token)

    def start(self, prefix: str = "") -> Position | None:
        """The position after a given beginning; None if no answer begins like that."""
        state = self._automaton.walk(prefix)
        return None if state is None else Position(state)

    def allowed(self, position: Position) -> frozenset[int]:
        """The tokens that may come next."""
        if position not in self._known:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[position] = frozenset(self._fitting(position))
        return self._known[position]

    def may_end(self, position: Position) -> bool:
        """Whether the answer may end here."""
        return not position.partial and position.state in self._automaton.accepting

    def after(self, position: Position, token: int) -> Position | None:
        """The position after a token; None if it is not allowed."""
        found: Position | None = position
        for byte in self._vocabulary[token]:
            found = self._step(found, byte) if found else None
        return found

    def _fitting(self, position: Position) -> Iterable[int]:
        waiting = [(self._tree, position)]
        while waiting:
            node, at = waiting.pop()
            yield from node.tokens
            for byte, child in node.after.items():
                if (then := self._step(at, byte)) is not None:
                    waiting.append((child, then))

    def _step(self, at: Position, byte: int) -> Position | None:
        if not at.partial and byte < 0x80:
            state = self._automaton.step(at.state, byte)
            return None if state is None else Position(state)
        sequence = at.partial + bytes((byte,))
        span = _span(sequence)
        if span is None:
            return None
        if span[0] == span[1] and len(sequence) == _length(sequence[0]):
            state = self._automaton.step(at.state, span[0])
            return None if state is None else Position(state)
        edges = self._automaton.edges[at.state]
        fits = any(low <= span[1] and span[0] <= high for low, high, _ in edges)
        return Position(at.state, sequence) if fits else None


def _length(first: int) -> int:
    """Bytes of the character that begins with this byte; 0 if none does."""
    if 0xC2 <= first <= 0xDF:
        return 2
    if 0xE0 <= first <= 0xEF:
        return 3
    return 4 if 0xF0 <= first <= 0xF4 else 0


def _span(sequence: bytes) -> tuple[int, int] | None:
    """The first and last character that a sequence can become; None if it is not the beginning of one."""
    length = _length(sequence[0])
    if not length or len(sequence) > length or any(byte & 0xC0 != 0x80 for byte in sequence[1:]):
        return None
    code = sequence[0] & (0xFF >> (length + 1))
    for byte in sequence[1:]:
        code = code << 6 | byte & 0x3F
    missing = 6 * (length - len(sequence))
    least = {2: 0x80, 3: 0x800, 4: 0x10000}[length]
    low, high = max(code << missing, least), min((code << missing) | (1 << missing) - 1, 0x10FFFF)
    if low > high or (low >= 0xD800 and high <= 0xDFFF):
        return None
    return low, high
