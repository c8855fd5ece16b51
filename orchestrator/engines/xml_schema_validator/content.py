"""Character data of a document as expressions: free text with entities and CDATA, and a value's automaton escaped."""

from __future__ import annotations

from orchestrator.engines.xml_schema_validator import charsets
from orchestrator.engines.xml_schema_validator.automaton import (
    Automaton,
    Expression,
    Nondeterministic,
    choice,
    text,
)

ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&apos;"}
_WIDE = 200  # characters from which a set means «any text»
_FEW_STATES = 40  # a longer bounded text has no entities: they would multiply its states
_MARKUP = charsets.of("<&")


def free_text(cdata: bool) -> Expression:
    """Any text as an element's content: raw characters, the five entities, CDATA sections; never a raw `]]>`."""

    def build(nfa: Nondeterministic, start: int) -> int:
        plain, one, two, end = nfa.new(), nfa.new(), nfa.new(), nfa.new()
        nfa.empty[start].append(plain)
        _brackets(nfa, (plain, one, two), charsets.difference(charsets.XML, _MARKUP), None)
        entity = choice(*(text(written) for written in ENTITIES.values()))
        for state in (plain, one, two):
            nfa.empty[state].append(end)
            nfa.empty[entity(nfa, state)].append(plain)
            if cdata:
                nfa.empty[_cdata(nfa, state)].append(plain)
        return end

    return build


def _cdata(nfa: Nondeterministic, start: int) -> int:
    inside, end = text("<![CDATA[")(nfa, start), nfa.new()
    _brackets(nfa, (inside, nfa.new(), nfa.new()), charsets.XML, end)
    return end


def _brackets(nfa: Nondeterministic, states: tuple[int, int, int], allowed: charsets.Ranges, end: int | None) -> None:
    """Text in three states: after no, one, two and more closing brackets. `>` after two leads to `end` or nowhere."""
    plain, one, two = states
    bracket = ord("]")
    others = charsets.difference(allowed, charsets.of("]"))
    for state in states:
        usual = charsets.difference(others, charsets.of(">")) if state == two else others
        nfa.edges[state] += [(low, high, plain) for low, high in usual]
        nfa.edges[state].append((bracket, bracket, one if state == plain else two))
    if end is not None:
        nfa.edges[two].append((ord(">"), ord(">"), end))


def escaped(value: Automaton, *, attribute: bool) -> Expression:
    """The texts of an automaton as they are written into a document.

    Markup characters are written as entities where the value names them, or where it has few states; in a long bounded
    text of any characters they are left out.
    """
    forbidden = charsets.of('<&>"\t\n' if attribute else "<&>")
    raw = charsets.difference(charsets.XML, forbidden)
    few = len(value.edges) <= _FEW_STATES

    def build(nfa: Nondeterministic, start: int) -> int:
        states = [nfa.new() for _ in value.edges]
        end = nfa.new()
        nfa.empty[start].append(states[0])
        for state, edges in enumerate(value.edges):
            for low, high, target in edges:
                allowed = charsets.intersection(((low, high),), raw)
                nfa.edges[states[state]] += [(first, last, states[target]) for first, last in allowed]
                if few or high - low < _WIDE:
                    _entities(nfa, states[state], (low, high), states[target], attribute)
            if state in value.accepting:
                nfa.empty[states[state]].append(end)
        return end

    return build


def _entities(nfa: Nondeterministic, state: int, edge: tuple[int, int], target: int, attribute: bool) -> None:
    for character in '<&>"' if attribute else "<&>":
        if edge[0] <= ord(character) <= edge[1]:
            nfa.empty[text(ENTITIES[character])(nfa, state)].append(target)
