"""Guides: compiled in a limited process, kept by hash; grammars from a prefix, endings of cut answers, token masks."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from orchestrator.engines.xml_schema_validator import (
    Guide,
    Position,
    TokenMasks,
    Unsupported,
    compile_schema,
    fuzz,
    guide,
)

ROOT = Path(__file__).parents[4]
SCHEMA = (ROOT / "action_schema.xsd").read_bytes()
VALIDATOR = etree.XMLSchema(etree.fromstring(SCHEMA))
PARSER = etree.XMLParser(resolve_entities=False, no_network=True)


def valid(answer: str) -> bool:
    return bool(VALIDATOR.validate(etree.fromstring(answer.encode(), PARSER)))


@pytest.fixture(scope="module")
def core() -> Guide:
    return guide(SCHEMA)


def test_a_guide_is_compiled_once(core: Guide) -> None:
    assert guide(SCHEMA) is core
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        guide(SCHEMA).grammar("<")
        times.append(time.perf_counter() - begun)
    assert min(times) < 0.01


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 10**9), cut=st.integers(0, 400))
def test_every_cut_answer_is_ended_validly(seed: int, cut: int) -> None:
    found = guide(SCHEMA)
    answer = fuzz(found.automaton, seed)
    whole, end = found.ending("", answer.encode()[:cut]) or ("", "")
    assert answer.startswith(whole)
    assert valid(whole + end)
    assert len(end) <= 30


def test_the_end_of_an_answer_with_a_prefix(core: Guide) -> None:
    assert core.ending("<single>", b"echo \xc3") == ("echo ", "</single>")
    assert core.ending("<single>", b"<![CDATA[ls]") == ("<![CDATA[ls]", "]></single>")
    assert core.ending("<single>", b"<b>") is None
    assert core.ending("", b"<stop/>") == ("<stop/>", "")


def test_no_grammar_for_a_prefix_that_begins_no_answer(core: Guide) -> None:
    assert core.grammar("<other") is None
    assert core.grammar("<single>") is not None


def test_a_grammar_names_only_rules_that_it_has(core: Guide) -> None:
    for prefix in ("", "<", "<single>", '<delete id="', "<single><![CDATA["):
        rules = dict(line.split(" ::= ", 1) for line in (core.grammar(prefix) or "").splitlines())
        used = {word for body in rules.values() for word in body.split() if word[0] in "sr"}
        assert "root" in rules
        assert used <= set(rules)


VOCABULARY = [
    *(bytes((byte,)) for byte in range(256)), b"", b"<single", b"<stop/>", b"stop/>", b">ls -la</", b"single>",
    b"]]>", b"<![CDATA[", "ü".encode(), "é<".encode(), "€".encode()[:2], "€".encode()[2:] + b"<", b' id="', b'"/>',
]  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), cut=st.integers(0, 200))
def test_masks_allow_exactly_the_tokens_that_can_go_on(seed: int, cut: int) -> None:
    """A token is allowed if its bytes after what was written are the beginning of a valid answer, by the automaton."""
    found = guide(SCHEMA)
    masks = TokenMasks(found.automaton, VOCABULARY)
    written = fuzz(found.automaton, seed)[:cut]
    position = masks.start(written)
    assert position is not None
    allowed = masks.allowed(position)
    for token, content in enumerate(VOCABULARY):
        try:
            possible = found.automaton.walk(written + content.decode()) is not None and content != b""
        except UnicodeDecodeError:
            continue  # inside a character: below
        assert (token in allowed) == possible, content
        assert not possible or masks.after(position, token) is not None
    assert masks.may_end(position) == found.automaton.accepts(written)


def test_masks_inside_a_character(core: Guide) -> None:
    masks = TokenMasks(core.automaton, VOCABULARY)
    position = masks.start("<single>")
    assert position is not None
    inside = masks.after(position, VOCABULARY.index("€".encode()[:2]))
    assert inside == Position(position.state, "€".encode()[:2])
    assert inside is not None
    assert not masks.may_end(inside)
    assert VOCABULARY.index("€".encode()[2:] + b"<") in masks.allowed(inside)
    assert all(0x80 <= VOCABULARY[token][0] <= 0xBF for token in masks.allowed(inside))
    assert masks.after(position, 0xFF) is None
    after_ef_bf = masks.after(masks.after(position, 0xEF) or position, 0xBF)
    assert after_ef_bf is not None
    assert 0xBD in masks.allowed(after_ef_bf)
    assert not masks.allowed(after_ef_bf) & {0xBE, 0xBF}  # U+FFFE and U+FFFF are no characters of XML


def test_masks_refuse_surrogates_and_overlong_sequences(core: Guide) -> None:
    masks = TokenMasks(core.automaton, VOCABULARY)
    start = masks.start("<single>")
    assert start is not None
    for first, second in ((0xED, 0xA0), (0xE0, 0x80), (0xF0, 0x80), (0xF4, 0x90)):
        begun = masks.after(start, first)
        assert begun is None or second not in masks.allowed(begun)


XS = b'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">'
HOSTILE = {
    "a bomb of entities": (b'<!DOCTYPE x [<!ENTITY a "b">]>' + XS + b"</xs:schema>", "DOCTYPE"),
    "an import": (XS + b'<xs:import schemaLocation="/etc/passwd"/></xs:schema>', "xs:import"),
    "an include": (XS + b'<xs:include schemaLocation="/etc/passwd"/></xs:schema>', "xs:include"),
    "no XML": (b"\x00\x01", "schema"),
    "nothing": (b"", "schema"),
    "too large": (XS + b" " * 300_000 + b"</xs:schema>", "size"),
    "a pattern with too many states": (
        XS + b'<xs:element name="a"><xs:simpleType><xs:restriction base="xs:string">'
        b'<xs:pattern value="(a|b)*a(a|b){18}"/></xs:restriction></xs:simpleType></xs:element></xs:schema>',
        "size",
    ),
    "types that multiply": (
        XS + b'<xs:element name="a" type="t0"/>' + b"".join(
            b'<xs:complexType name="t%d"><xs:sequence><xs:element name="b" type="t%d" maxOccurs="9"/>'
            b'<xs:element name="c" type="t%d" maxOccurs="9"/></xs:sequence></xs:complexType>' % (n, n + 1, n + 1)
            for n in range(9)
        ) + b'<xs:complexType name="t9"><xs:sequence/></xs:complexType></xs:schema>',
        "size",
    ),
}  # fmt: skip


@pytest.mark.bad_input
@pytest.mark.parametrize("case", HOSTILE)
def test_bad_input_hostile_schemas(case: str) -> None:
    document, construct = HOSTILE[case]
    begun = time.monotonic()
    with pytest.raises(Unsupported) as caught:
        guide(document)
    print(f"{case}: {caught.value}")
    assert caught.value.construct == construct
    assert time.monotonic() - begun < 25


@pytest.mark.parametrize(
    ("program", "told"),
    [
        ("import nothing_of_that_name", "process: compiling ended with exit code 1: ModuleNotFoundError: No module"),
        ("import os; os.write(2, b'a\\n\\x1b[0m\\n'); os.abort()", "process: compiling ended with signal 6: ?[0m"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGVTALRM)", "size: compiling takes too much processor time"),
        ("import time; time.sleep(30)", "size: compiling takes more than 0.5 s"),
    ],
)
def test_a_compiler_that_ends_without_a_result_says_why(
    program: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "program.py").write_text(program)
    monkeypatch.setattr("orchestrator.engines.xml_schema_validator.compiler.PROGRAM", tmp_path / "program.py")
    monkeypatch.setattr(
        "orchestrator.engines.xml_schema_validator.compiler._PATIENCE", 0.5 if "sleep" in program else 20
    )
    with pytest.raises(Unsupported) as caught:
        compile_schema(SCHEMA)
    assert str(caught.value).startswith(told)


def test_the_command_for_people(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "orchestrator.engines.xml_schema_validator", str(ROOT / "action_schema.xsd")]

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([*program, *options], capture_output=True, text=True, check=False, cwd=ROOT)

    assert run("--close", '<delete id="a').stdout == '"/>\n'
    assert all(valid(line) for line in run("--prefix", "<stop", "--fuzz", "3").stdout.splitlines())
    assert run().stdout.startswith("root ::= ")
    assert run("--close", "<nothing").returncode == 1
