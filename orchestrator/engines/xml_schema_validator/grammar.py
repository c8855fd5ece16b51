"""An automaton as a GBNF grammar (llama.cpp's), from any state: the rest of an answer whose beginning is given."""

from __future__ import annotations

from collections import defaultdict

from orchestrator.engines.xml_schema_validator.automaton import Automaton

_LONGEST_LITERAL = 200  # characters of a chain of states that is written as one literal


def gbnf(automaton: Automaton, state: int = 0) -> str:
    """The grammar of what may follow `state`. The automaton must not be empty."""
    names: dict[int, str] = {state: "root"}
    rules, waiting = [], [state]
    for at in waiting:
        alternatives = ['""'] if at in automaton.accepting else []
        by_target: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for low, high, target in automaton.edges[at]:
            by_target[target].append((low, high))
        for target, ranges in by_target.items():
            literal, end = _chain(automaton, target)
            if end not in names:
                names[end] = f"s{end}"
                waiting.append(end)
            parts = (_class(ranges), literal and f'"{literal}"', _rest(automaton, end, names))
            alternatives.append(" ".join(filter(None, parts)))
        rules.append(f"{names[at]} ::= {' | '.join(alternatives)}")
    return "\n".join(rules) + "\n"


def _rest(automaton: Automaton, state: int, names: dict[int, str]) -> str:
    """The rule of a state; nothing where an answer ends, since an empty rule costs the sampler a step."""
    return names[state] if automaton.edges[state] else ""


def _chain(automaton: Automaton, state: int) -> tuple[str, int]:
    """The only way on from a state as a literal, and the state after it."""
    literal = ""
    for _ in range(_LONGEST_LITERAL):
        edges = automaton.edges[state]
        if state in automaton.accepting or len(edges) != 1 or edges[0][0] != edges[0][1]:
            break
        literal += _quoted(edges[0][0])
        state = edges[0][2]
    return literal, state


def _class(ranges: list[tuple[int, int]]) -> str:
    parts = (_quoted(low) if low == high else f"{_quoted(low)}-{_quoted(high)}" for low, high in ranges)
    return f"[{''.join(parts)}]"


def _quoted(code: int) -> str:
    if chr(code).isascii() and chr(code).isalnum():
        return chr(code)
    if code < 0x80:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code < 0x10000 else f"\\U{code:08X}"
