"""Schemas as automata: what is accepted is valid for libxml2, what can't be compiled is refused by its name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lxml import etree

from orchestrator.engines.xml_schema_validator import Automaton, Unsupported, fuzz
from orchestrator.engines.xml_schema_validator.process import compiled

SCHEMA = (Path(__file__).parents[4] / "action_schema.xsd").read_bytes()
PARSER = etree.XMLParser(resolve_entities=False, no_network=True)


def schema(body: str) -> bytes:
    return f'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">{body}</xs:schema>'.encode()


def typed(restriction: str, base: str = "xs:string") -> bytes:
    inner = f'<xs:simpleType><xs:restriction base="{base}">{restriction}</xs:restriction></xs:simpleType>'
    return schema(f'<xs:element name="a">{inner}</xs:element>')


def automaton(document: bytes, *, cdata: bool = True) -> Automaton:
    result = compiled(document, cdata=cdata)
    if "refused" in result:
        raise Unsupported(result["refused"], result["why"])
    return Automaton(result["edges"], frozenset(result["accepting"]))


def valid(document: bytes, answer: str) -> bool:
    try:
        return bool(etree.XMLSchema(etree.fromstring(document)).validate(etree.fromstring(answer.encode(), PARSER)))
    except etree.XMLSyntaxError:
        return False


@pytest.mark.parametrize(
    "answer",
    [
        "<stop/>",
        "<stop></stop>",
        "<single>ls > x</single>",
        '<single timeout="5" limit="3"><![CDATA[a && b]]></single>',
        '<single timeout="0.001">x</single>',
        '<delete id="abc"/>',
        "<reasoning>&lt;ü]] ></reasoning>",
        "<write_stdout><![CDATA[]]]]><![CDATA[>]]></write_stdout>",
    ],
)
def test_answers_of_the_core_schema(answer: str) -> None:
    assert valid(SCHEMA, answer)
    assert automaton(SCHEMA).accepts(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "<stop>x</stop>",
        "<delete/>",
        '<delete id=""/>',
        f'<delete id="{"x" * 65}"/>',
        "<single>]]></single>",
        "<single>a & b</single>",
        "<single><stdout>x</stdout></single>",
        '<single timeout="0">x</single>',
        '<single timeout="000.0">x</single>',
        '<single timeout="NaN">x</single>',
        '<single limit="-1">x</single>',
        "<single>\x00</single>",
        "<single>\ufffe</single>",
        "<stop/><stop/>",
        "<other/>",
    ],
)
def test_invalid_answers_of_the_core_schema(answer: str) -> None:
    assert not automaton(SCHEMA).accepts(answer)


SCHEMAS = {
    "enumeration": typed('<xs:enumeration value="a &lt; b"/><xs:enumeration value="c"/>'),
    "pattern": typed(r'<xs:pattern value="[a-c]{2,3}(x|y&gt;)?\.\d+"/>'),
    "classes": typed('<xs:pattern value="[a-df-z]+[^a-z][+-][-a][a-]"/>'),
    "length": typed('<xs:length value="3"/>'),
    "preserved": typed('<xs:whiteSpace value="preserve"/>'),
    "replaced": typed('<xs:whiteSpace value="replace"/><xs:minLength value="2"/>'),
    "collapsed": typed('<xs:whiteSpace value="collapse"/>'),
    "token": typed('<xs:maxLength value="9"/>', "xs:token"),
    "byte": typed('<xs:minExclusive value="-5"/>', "xs:byte"),
    "unsigned": typed("", "xs:unsignedInt"),
    "decimal": typed(
        '<xs:minInclusive value="-1.25"/><xs:maxExclusive value="10.5"/><xs:fractionDigits value="3"/>', "xs:decimal"
    ),
    "digits": typed('<xs:totalDigits value="3"/>', "xs:decimal"),
    "boolean": typed("", "xs:boolean"),
    "names": typed("", "xs:NCName"),
    "union": schema(
        '<xs:element name="a"><xs:simpleType><xs:union memberTypes="xs:boolean n"/></xs:simpleType></xs:element>'
        '<xs:simpleType name="n"><xs:restriction base="xs:positiveInteger"/></xs:simpleType>'
    ),
    "children": schema(
        '<xs:element name="a"><xs:complexType><xs:sequence><xs:element ref="b" maxOccurs="3"/>'
        '<xs:choice minOccurs="0" maxOccurs="unbounded"><xs:element name="c" type="xs:int"/>'
        '<xs:element name="d" type="xs:string"/></xs:choice></xs:sequence>'
        '<xs:attribute name="k" type="xs:string"/><xs:attribute name="l" fixed="&lt;1>" use="required"/>'
        '</xs:complexType></xs:element><xs:element name="b" fixed="f" type="xs:string"/>'
    ),
    "all": schema(
        '<xs:element name="a"><xs:complexType><xs:all><xs:element name="b" type="xs:string"/>'
        '<xs:element name="c" type="xs:string" minOccurs="0"/></xs:all></xs:complexType></xs:element>'
    ),
    "extension": schema(
        '<xs:complexType name="base"><xs:simpleContent><xs:extension base="xs:string">'
        '<xs:attribute name="x" type="xs:short" use="required"/></xs:extension></xs:simpleContent></xs:complexType>'
        '<xs:element name="a"><xs:complexType><xs:simpleContent><xs:extension base="base">'
        '<xs:attribute name="y" type="xs:token"/></xs:extension></xs:simpleContent></xs:complexType></xs:element>'
    ),
}


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_random_answer_is_valid(name: str) -> None:
    found = automaton(SCHEMAS[name])
    checker = etree.XMLSchema(etree.fromstring(SCHEMAS[name]))
    for seed in range(150):
        answer = fuzz(found, seed, characters=60)
        root = etree.fromstring(answer.encode(), PARSER)
        assert checker.validate(root), (answer, checker.error_log)


@settings(max_examples=60, deadline=None)
@given(
    bound=st.decimals(-300, 300, allow_nan=False, places=2),
    facet=st.sampled_from(["minInclusive", "minExclusive", "maxInclusive", "maxExclusive"]),
    numerals=st.lists(st.from_regex(r"-?0{0,2}[0-9]{1,3}(\.[0-9]{1,3})?", fullmatch=True), max_size=30),
)
def test_bounds_as_libxml2_sees_them(bound: object, facet: str, numerals: list[str]) -> None:
    document = typed(f'<xs:{facet} value="{bound}"/>', "xs:decimal")
    found = automaton(document)
    for numeral in [*numerals, str(bound)]:
        assert found.accepts(f"<a>{numeral}</a>") == valid(document, f"<a>{numeral}</a>"), numeral


# Without negated classes: where one overlaps the class after it, libxml2 2.14 refuses what it should match.
PATTERN_PARTS = st.sampled_from(["a", "b", "[ab]", ".", r"\d", r"\s", r"\-", "(a|bb)", "[a-c]", "(x{1,2})"])
PATTERNS = st.lists(st.tuples(PATTERN_PARTS, st.sampled_from(["", "", "?", "*", "+", "{2}"])), min_size=1, max_size=5)


@settings(max_examples=60, deadline=None)
@given(parts=PATTERNS, text=st.text("abcx1 -\n", max_size=6))
def test_patterns_as_libxml2_sees_them(parts: list[tuple[str, str]], text: str) -> None:
    document = typed(f'<xs:pattern value="{"".join(a + b for a, b in parts)}"/>')
    found = automaton(document)
    assert found.accepts(f"<a>{text}</a>") == valid(document, f"<a>{text}</a>")
    assert valid(document, fuzz(found, len(text), characters=20))


def element(content: str) -> bytes:
    return schema(f'<xs:element name="a"><xs:complexType>{content}</xs:complexType></xs:element>')


REFUSED = {
    "xs:any": element('<xs:sequence><xs:any processContents="skip"/></xs:sequence>'),
    "mixed": schema(
        '<xs:element name="a"><xs:complexType mixed="true"><xs:sequence><xs:element name="b" type="xs:string"/>'
        "</xs:sequence></xs:complexType></xs:element>"
    ),
    "xs:dateTime": schema('<xs:element name="a" type="xs:dateTime"/>'),
    "xs:list": schema('<xs:element name="a"><xs:simpleType><xs:list itemType="xs:int"/></xs:simpleType></xs:element>'),
    "xs:pattern": typed(r'<xs:pattern value="\p{Lu}"/>'),
    "xs:maxLength": typed('<xs:maxLength value="100000"/>'),
    "recursion": schema(
        '<xs:element name="a"><xs:complexType><xs:sequence><xs:element ref="a" minOccurs="0"/>'
        "</xs:sequence></xs:complexType></xs:element>"
    ),
    "xs:key": schema(
        '<xs:element name="a" type="xs:string"><xs:key name="k"><xs:selector xpath="b"/><xs:field xpath="@c"/></xs:key>'
        "</xs:element>"
    ),
    "xs:complexContent": schema(
        '<xs:complexType name="b"><xs:sequence/></xs:complexType><xs:element name="a"><xs:complexType>'
        '<xs:complexContent><xs:extension base="b"/></xs:complexContent></xs:complexType></xs:element>'
    ),
    "xs:group": schema(
        '<xs:group name="g"><xs:sequence><xs:element name="b" type="xs:string"/></xs:sequence></xs:group>'
        '<xs:element name="a" type="xs:string"/>'
    ),
    "substitutionGroup": schema(
        '<xs:element name="a" type="xs:string"/><xs:element name="b" substitutionGroup="a" type="xs:string"/>'
    ),
    "maxOccurs": element('<xs:sequence><xs:element name="b" type="xs:string" maxOccurs="9999"/></xs:sequence>'),
    "xs:element": schema(""),
    "xs:restriction": typed('<xs:pattern value="a"/><xs:enumeration value="b"/>'),
}


@pytest.mark.parametrize("construct", REFUSED)
def test_refused_by_the_name_of_the_construct(construct: str) -> None:
    with pytest.raises(Unsupported) as caught:
        automaton(REFUSED[construct])
    assert caught.value.construct == construct, str(caught.value)


@pytest.mark.parametrize("source", [r"[^\d]", "[a-z-[aeiou]]", r"\W", "(?:a)", "a{3000}", "[^\\c]"])
def test_patterns_that_are_refused(source: str) -> None:
    with pytest.raises(Unsupported):
        automaton(typed(f'<xs:pattern value="{source}"/>'))


def test_a_target_namespace_is_refused() -> None:
    document = b'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema" targetNamespace="urn:x"/>'
    with pytest.raises(Unsupported, match="targetNamespace"):
        automaton(document)


def test_a_fault_of_the_compiler_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not as a schema that is too large, or wrong."""

    def faulty(*_: object, **__: object) -> Automaton:
        raise KeyError("nobody foresaw it")

    monkeypatch.setattr("orchestrator.engines.xml_schema_validator.reader.read", faulty)
    result = compiled(SCHEMA, cdata=True)
    assert result["refused"] == "fault"
    assert re.fullmatch(r"test_reader\.py:\d+: KeyError: 'nobody foresaw it'", result["why"])


def test_without_cdata() -> None:
    found = automaton(SCHEMA, cdata=False)
    assert not found.accepts("<single><![CDATA[x]]></single>")
    assert found.accepts("<single>x &amp; y</single>")
