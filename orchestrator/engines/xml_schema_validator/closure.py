"""The shortest way to end an answer that was cut off, and random answers."""

from __future__ import annotations

import random
from collections import deque
from functools import lru_cache

from orchestrator.engines.xml_schema_validator.automaton import Automaton, Edge
from orchestrator.engines.xml_schema_validator.charsets import intersection, of

_PLAIN = ((ord("a"), ord("z")),)
_READABLE = ((0x20, 0x7E),)  # what a random walk prefers
_MARKS = of("]>&\"'\n")


class Closure:
    """Shortest completions of one automaton. Computed once; thread-safe."""

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._next = _towards_end(automaton)

    def of(self, state: int) -> str:
        """The shortest text that leads from a state to the end of an answer; empty if the answer may end there."""
        written = []
        while state not in self._automaton.accepting:
            character, state = self._next[state]
            written.append(character)
        return "".join(written)


def kept(begun: bytes) -> str:
    """The text of an answer's bytes without a UTF-8 sequence that was cut off at its end."""
    return begun.decode("utf-8", "ignore")


def fuzz(automaton: Automaton, seed: int, *, characters: int = 200, state: int = 0) -> str:
    """A random valid answer: a walk that prefers to stay for `characters`, then ends the shortest way."""
    chance, closing, written = random.Random(seed), _closing(automaton), []
    for _ in range(chance.randint(0, characters)):
        edges = automaton.edges[state]
        if not edges or (state in automaton.accepting and chance.random() < 0.1):
            break
        low, high, state = chance.choice(edges)
        written.append(_some(low, high, chance))
    return "".join(written) + closing.of(state)


@lru_cache(maxsize=8)
def _closing(automaton: Automaton) -> Closure:
    return Closure(automaton)


def _some(low: int, high: int, chance: random.Random) -> str:
    """A character of a range: mostly ASCII, often one that could be markup, now and then any."""
    likely = intersection(((low, high),), _MARKS if chance.random() < 0.2 else _READABLE)
    if likely and chance.random() < 0.9:
        low, high = chance.choice(likely)
    return chr(chance.randint(low, high))


def _towards_end(automaton: Automaton) -> dict[int, tuple[str, int]]:
    """For each state that is no end: a character and the state after it, one step nearer to an end."""
    before: dict[int, list[tuple[int, Edge]]] = {}
    for state, edges in enumerate(automaton.edges):
        for edge in edges:
            before.setdefault(edge[2], []).append((state, edge))
    found: dict[int, tuple[str, int]] = {}
    waiting = deque(sorted(automaton.accepting))
    while waiting:
        target = waiting.popleft()
        for state, (low, high, _) in before.get(target, ()):
            if state not in found and state not in automaton.accepting:
                found[state] = _plainest(low, high), target
                waiting.append(state)
    return found


def _plainest(low: int, high: int) -> str:
    letters = intersection(((low, high),), _PLAIN)
    return chr(letters[0][0] if letters else low)
