"""Deterministic automata over characters: built from expressions, intersected, walked.

An `Expression` is a function that adds states to a nondeterministic automaton: from a state to the state after it.
Sizes are limited, because schemas come from candidates.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

from orchestrator.engines.xml_schema_validator.charsets import Ranges
from orchestrator.engines.xml_schema_validator.errors import Unsupported

MAX_NONDETERMINISTIC = 60_000  # states
MAX_STATES = 6_000

Edge = tuple[int, int, int]  # first and last character, state after it
S = TypeVar("S", bound=Hashable)


class Nondeterministic:
    """The states under construction. Empty moves are a list per state."""

    def __init__(self) -> None:
        self.edges: list[list[Edge]] = []
        self.empty: list[list[int]] = []

    def new(self) -> int:
        """A new state."""
        if len(self.edges) >= MAX_NONDETERMINISTIC:
            raise Unsupported("size", f"the schema needs more than {MAX_NONDETERMINISTIC} states")
        self.edges.append([])
        self.empty.append([])
        return len(self.edges) - 1


Expression = Callable[[Nondeterministic, int], int]


def chars(ranges: Ranges) -> Expression:
    """One character out of a set."""

    def build(nfa: Nondeterministic, start: int) -> int:
        end = nfa.new()
        nfa.edges[start] += [(low, high, end) for low, high in ranges]
        return end

    return build


def text(literal: str) -> Expression:
    """Exactly these characters."""
    return sequence(*(chars(((ord(c), ord(c)),)) for c in literal))


def sequence(*parts: Expression) -> Expression:
    """One after the other."""

    def build(nfa: Nondeterministic, start: int) -> int:
        for part in parts:
            start = part(nfa, start)
        return start

    return build


def choice(*parts: Expression) -> Expression:
    """One of them."""

    def build(nfa: Nondeterministic, start: int) -> int:
        end = nfa.new()
        for part in parts:
            begin = nfa.new()
            nfa.empty[start].append(begin)
            nfa.empty[part(nfa, begin)].append(end)
        return end

    return build


def star(part: Expression) -> Expression:
    """Any number of times."""

    def build(nfa: Nondeterministic, start: int) -> int:
        again, end = nfa.new(), nfa.new()
        nfa.empty[start].append(again)
        nfa.empty[part(nfa, again)].append(again)
        nfa.empty[again].append(end)
        return end

    return build


def repeat(part: Expression, least: int, most: int | None) -> Expression:
    """`least` to `most` times; None: without an end."""
    head = [part] * least
    if most is None:
        return sequence(*head, star(part))

    def build(nfa: Nondeterministic, start: int) -> int:
        start = sequence(*head)(nfa, start)
        end = nfa.new()
        for _ in range(most - least):
            nfa.empty[start].append(end)
            start = part(nfa, start)
        nfa.empty[start].append(end)
        return end

    return build


@dataclass(frozen=True)
class Automaton:
    """A deterministic automaton: state 0 is the start, `edges` of a state are sorted and disjoint.

    From every state an accepting one can be reached, except that an automaton that accepts nothing has one state.
    """

    edges: tuple[tuple[Edge, ...], ...]
    accepting: frozenset[int]

    @property
    def empty(self) -> bool:
        """Whether it accepts no text at all."""
        return not self.accepting

    @cached_property
    def _firsts(self) -> tuple[list[int], ...]:
        return tuple([edge[0] for edge in edges] for edges in self.edges)

    def step(self, state: int, character: int) -> int | None:
        """The state after a character; None if it can't come here."""
        at = bisect_right(self._firsts[state], character) - 1
        if at < 0:
            return None
        _, last, target = self.edges[state][at]
        return target if character <= last else None

    def walk(self, given: str, state: int = 0) -> int | None:
        """The state after a text; None if no accepted text goes on like that."""
        for character in given:
            after = self.step(state, ord(character))
            if after is None:
                return None
            state = after
        return state

    def accepts(self, given: str) -> bool:
        """Whether the whole text is accepted."""
        return self.walk(given) in self.accepting

    def embedded(self) -> Expression:
        """This automaton as a part of an expression."""

        def build(nfa: Nondeterministic, start: int) -> int:
            states = [nfa.new() for _ in self.edges]
            end = nfa.new()
            nfa.empty[start].append(states[0])
            for state, edges in enumerate(self.edges):
                nfa.edges[states[state]] += [(low, high, states[target]) for low, high, target in edges]
                if state in self.accepting:
                    nfa.empty[states[state]].append(end)
            return end

        return build


def automaton(expression: Expression) -> Automaton:
    """The automaton of an expression (subset construction)."""
    nfa = Nondeterministic()
    start = nfa.new()
    end = expression(nfa, start)
    closures: dict[int, frozenset[int]] = {}

    def closed(states: Iterable[int]) -> frozenset[int]:
        return frozenset().union(*(closures.get(state) or _closure(nfa, state, closures) for state in states))

    def moves(states: frozenset[int]) -> list[tuple[int, int, frozenset[int]]]:
        edges = [edge for state in states for edge in nfa.edges[state]]
        return [(low, high, closed(targets)) for low, high, targets in _split(edges)]

    return explore(closed([start]), moves, lambda states: end in states)


def intersection(a: Automaton, b: Automaton) -> Automaton:
    """What both accept."""

    def moves(pair: tuple[int, int]) -> list[tuple[int, int, tuple[int, int]]]:
        found = []
        for low, high, after in a.edges[pair[0]]:
            for first, last, other in b.edges[pair[1]]:
                if max(low, first) <= min(high, last):
                    found.append((max(low, first), min(high, last), (after, other)))
        return sorted(found)

    return explore((0, 0), moves, lambda pair: pair[0] in a.accepting and pair[1] in b.accepting)


def explore(start: S, moves: Callable[[S], list[tuple[int, int, S]]], accepts: Callable[[S], bool]) -> Automaton:
    """The automaton whose states are all that `moves` reaches from `start`; `moves` are sorted and disjoint."""
    numbers: dict[S, int] = {start: 0}
    edges: list[list[Edge]] = []
    waiting = [start]
    for state in waiting:
        found: list[Edge] = []
        for low, high, after in moves(state):
            if after not in numbers:
                if len(numbers) >= MAX_STATES:
                    raise Unsupported("size", f"the schema needs more than {MAX_STATES} states")
                numbers[after] = len(numbers)
                waiting.append(after)
            target = numbers[after]
            if found and found[-1][2] == target and found[-1][1] + 1 == low:
                found[-1] = found[-1][0], high, target
            else:
                found.append((low, high, target))
        edges.append(found)
    return _trimmed(edges, {number for state, number in numbers.items() if accepts(state)})


def _closure(nfa: Nondeterministic, state: int, known: dict[int, frozenset[int]]) -> frozenset[int]:
    seen, waiting = {state}, [state]
    while waiting:
        for after in nfa.empty[waiting.pop()]:
            if after not in seen:
                seen.add(after)
                waiting.append(after)
    # States without characters of their own and without a way on only blow the sets up; the end is among those kept.
    known[state] = frozenset(s for s in seen if nfa.edges[s] or not nfa.empty[s])
    return known[state]


def _split(edges: list[Edge]) -> list[tuple[int, int, frozenset[int]]]:
    """Overlapping edges as disjoint ranges with all their targets."""
    bounds = sorted({low for low, _, _ in edges} | {high + 1 for _, high, _ in edges})
    found = []
    for low, after in itertools.pairwise(bounds):
        targets = frozenset(target for first, last, target in edges if first <= low <= last)
        if targets:
            found.append((low, after - 1, targets))
    return found


def _trimmed(edges: list[list[Edge]], accepting: set[int]) -> Automaton:
    """Without states from which no accepting one can be reached."""
    before: list[set[int]] = [set() for _ in edges]
    for state, out in enumerate(edges):
        for _, _, target in out:
            before[target].add(state)
    alive, waiting = set(accepting), list(accepting)
    while waiting:
        for state in before[waiting.pop()] - alive:
            alive.add(state)
            waiting.append(state)
    if 0 not in alive:
        return Automaton(((),), frozenset())
    kept = sorted(alive)
    number = {state: at for at, state in enumerate(kept)}
    return Automaton(
        tuple(tuple((low, high, number[t]) for low, high, t in edges[s] if t in number) for s in kept),
        frozenset(number[state] for state in accepting),
    )
