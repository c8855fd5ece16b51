"""The text of a grammar, read as llama.cpp reads it, allows exactly what its automaton does."""

from __future__ import annotations

import random
from functools import cache

import pytest

from orchestrator.engines.xml_schema_validator import Automaton, fuzz, gbnf
from orchestrator.engines.xml_schema_validator.automaton import automaton as automaton_of
from orchestrator.engines.xml_schema_validator.patterns import pattern
from tests.orchestrator.engines.xml_schema_validator.gbnf_kit import Gbnf
from tests.orchestrator.engines.xml_schema_validator.test_reader import SCHEMA, SCHEMAS, automaton, typed

QUOTING = typed(
    "".join(f'<xs:enumeration value="{value}"/>' for value in (r"a\b&quot;c", "[^]-x]", "é€😀", "|()*+?{1}:= .", ""))
)
CLASSES = typed(r'<xs:pattern value="[\]\[\^\-\\&quot;]{1,2}([😀-😂é-ü!--]|[a-z]?)"/>')
CASES = {**SCHEMAS, "core": SCHEMA, "quoting": QUOTING, "classes": CLASSES}
STRANGE = "\"\\]-[^'<>&|x0 \n\té€😀\ufffd"


def changed(answer: str, chance: random.Random) -> str:
    """An answer with one character less, more, or another one; or cut off."""
    at = chance.randint(0, len(answer))
    other = chance.choice(STRANGE + answer)
    return chance.choice([answer[:at], answer[:at] + other + answer[at + 1 :], answer[:at] + other + answer[at:]])


def read(found: Automaton, state: int, text: str) -> tuple[int, bool]:
    """What `Gbnf.read` tells, by the automaton."""
    for at, character in enumerate(text):
        after = found.step(state, ord(character))
        if after is None:
            return at, False
        state = after
    return len(text), state in found.accepting


def compare(found: Automaton, chance: random.Random) -> int:
    """Grammar and automaton on answers and on changed ones, after several prefixes; how many changed ones are valid."""
    grammar, accepted = cache(lambda state: Gbnf(gbnf(found, state))), 0
    for seed in range(40):
        answer = fuzz(found, seed, characters=60)
        prefix = answer[: chance.choice([0, 0, 0, 1, 8, len(answer)])]
        state = found.walk(prefix)
        assert state is not None
        rest = answer[len(prefix) :]
        assert grammar(state).read(rest) == (len(rest), True)
        for _ in range(10):
            other = changed(rest, chance)
            result = grammar(state).read(other)
            assert result == read(found, state, other), (prefix, other)
            accepted += result[1]
    return accepted


@pytest.mark.parametrize("cdata", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_a_grammar_allows_what_its_automaton_does(case: str, cdata: bool) -> None:
    assert compare(automaton(CASES[case], cdata=cdata), random.Random(case)) < 400  # it does refuse


@pytest.mark.parametrize("source", ["", "a?", "(ab)*", "abc?(d|e)*", "(ab|a)(c|cd)?", "a{2,3}[x-z]{0,2}b?"])
def test_where_a_text_may_end_before_its_end(source: str) -> None:
    """No answer can go on after its root, but a grammar of part of one could."""
    compare(automaton_of(pattern(source)), random.Random(source))


@pytest.mark.parametrize(
    "text",
    ['root ::= "a', "root ::= s1\n", 'root ::= "\\d"\n', "root ::= [a\n", 'root ::= ("a")\n', 'root ::= "a"*\n', ""],
)
def test_what_llama_cpp_would_not_take_or_read_otherwise_is_no_grammar_here(text: str) -> None:
    with pytest.raises(ValueError, match=r"no rule|not understood|no escape"):
        Gbnf(text)
