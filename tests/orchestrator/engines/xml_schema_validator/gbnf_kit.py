"""Reads and runs GBNF as llama.cpp does, so that a grammar's text can be tested where llama.cpp is not installed.

Read is what grammars of answers need: rules, alternatives, names of rules, literals, classes, escapes. Anything else is
an error, for llama.cpp would read it as something else (repetitions, groups) or refuse it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

Ranges = tuple[tuple[int, int], ...]
Element = Ranges | str  # one character of these ranges, or what a rule of this name stands for
Place = tuple[str, int, int]  # in which rule, alternative and element
Stack = tuple[Place, ...]  # what is still to come, the next place last; () is the end of an answer

_RULE = re.compile(r"([a-zA-Z0-9-]+) ::= (.*)\n")
_TOKEN = re.compile(
    r'[ ]+|(?P<bar>\|)|(?P<name>[a-zA-Z0-9-]+)|"(?P<literal>(?:[^"\\]|\\.)*)"|\[(?P<set>(?:[^\]\\]|\\.)*)\]'
)
_CHARACTER = re.compile(r'\\x([0-9A-Fa-f]{2})|\\u([0-9A-Fa-f]{4})|\\U([0-9A-Fa-f]{8})|\\([trn\\"\[\]])|([^\\])')
_SHORT = {"t": "\t", "r": "\r", "n": "\n"}


class Gbnf:
    """A grammar. Raises ValueError if its text is not one."""

    def __init__(self, text: str) -> None:
        self._rules: dict[str, list[list[Element]]] = {}
        for line in text.splitlines(keepends=True):
            match = _RULE.fullmatch(line)
            if match is None or match[1] in self._rules:
                raise ValueError(f"no rule, or one that is there already: {line!r}")
            self._rules[match[1]] = _alternatives(match[2])
        used = {part for rule in self._rules.values() for way in rule for part in way if isinstance(part, str)}
        if missing := {"root", *used} - set(self._rules):
            raise ValueError(f"no rules {sorted(missing)}")
        self._known: dict[Stack, frozenset[Stack]] = {}

    def read(self, text: str) -> tuple[int, bool]:
        """How many characters of a text begin an answer, and whether all of it is one."""
        stacks = frozenset[Stack]().union(
            *(self._ready((("root", way, 0),)) for way in range(len(self._rules["root"])))
        )
        for at, character in enumerate(text):
            code = ord(character)
            after = [_onward(stack) for stack in stacks if stack and self._takes(stack, code)]
            if not after:
                return at, False
            stacks = frozenset[Stack]().union(*map(self._ready, after))
        return len(text), () in stacks

    def _takes(self, stack: Stack, code: int) -> bool:
        rule, way, at = stack[-1]
        return any(low <= code <= high for low, high in self._rules[rule][way][at])  # type: ignore[misc]

    def _ready(self, stack: Stack) -> frozenset[Stack]:
        """The same as stacks whose next element takes a character, or that are at the end."""
        if stack not in self._known:
            found, waiting, seen = set(), [stack], {stack}
            while waiting:
                one = waiting.pop()
                for other in self._opened(one):
                    if other == one:
                        found.add(one)
                    elif other not in seen:
                        seen.add(other)
                        waiting.append(other)
            self._known[stack] = frozenset(found)
        return self._known[stack]

    def _opened(self, stack: Stack) -> Iterator[Stack]:
        if not stack:
            yield stack
            return
        rule, way, at = stack[-1]
        elements = self._rules[rule][way]
        if at == len(elements):
            yield stack[:-1]
        elif isinstance(name := elements[at], str):
            rest = stack[:-1] if at + 1 == len(elements) else _onward(stack)
            yield from ((*rest, (name, number, 0)) for number in range(len(self._rules[name])))
        else:
            yield stack


def _onward(stack: Stack) -> Stack:
    rule, way, at = stack[-1]
    return (*stack[:-1], (rule, way, at + 1))


def _alternatives(body: str) -> list[list[Element]]:
    found: list[list[Element]] = [[]]
    at = 0
    while at < len(body):
        match = _TOKEN.match(body, at)
        if match is None:
            raise ValueError(f"not understood: {body[at : at + 40]!r}")
        at = match.end()
        if match["bar"]:
            found.append([])
        elif match["name"]:
            found[-1].append(match["name"])
        elif match["literal"] is not None:
            found[-1] += [((code, code),) for code, _ in _characters(match["literal"])]
        elif match["set"] is not None:
            found[-1].append(_ranges(match["set"]))
    return found


def _ranges(inside: str) -> Ranges:
    if inside.startswith("^") or not inside:
        raise ValueError(f"a negated or empty class: {inside!r}")
    given, found = list(_characters(inside)), []
    while given:
        low, _ = given.pop(0)
        if len(given) > 1 and given[0] == (ord("-"), True):
            del given[0]
            found.append((low, given.pop(0)[0]))
        else:
            found.append((low, low))
    if any(low > high for low, high in found):
        raise ValueError(f"a range that goes down: {inside!r}")
    return tuple(found)


def _characters(text: str) -> Iterator[tuple[int, bool]]:
    """Codes of characters, and whether each was written as itself: only then `-` makes a range."""
    at = 0
    while at < len(text):
        match = _CHARACTER.match(text, at)
        if match is None:
            raise ValueError(f"no escape: {text[at : at + 10]!r}")
        at = match.end()
        digits = match[1] or match[2] or match[3]
        written = match[4] or match[5]
        yield (int(digits, 16), False) if digits else (ord(_SHORT.get(match[4], written)), match[5] is not None)
