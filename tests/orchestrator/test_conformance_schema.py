"""Which actions a candidate may be asked for, read from its schema; whatever is in that."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.conformance_schema import MAX_SCHEMA, Actions

OURS = (Path(__file__).parents[2] / "action_schema.xsd").read_bytes()
HEAD = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema">'


def actions(inside: str, head: str = HEAD) -> Actions:
    return Actions(f"{head}{inside}</xs:schema>".encode())


def test_the_standard_schema() -> None:
    found = Actions(OURS)
    for name in ("single", "repeat", "delete", "stop", "read_stdin", "write_stdout", "reasoning"):
        assert found.has(name)
    assert found.has("single", "timeout") and found.has("repeat", "limit") and found.has("delete", "id")
    assert not found.has("single", "id") and not found.has("stop", "timeout") and not found.has("script")


@pytest.mark.parametrize(
    "declared",
    [
        '<xs:element type="xs:string" name="single"/>',
        '<xs:element name = "single"/>',
        "<xs:element\nid='a' name='single'/>",
        '<xs:element name="&#115;ingle"/>',
        '<xs:element name=" single "/>',
        '<!-- > --><element xmlns="http://www.w3.org/2001/XMLSchema" name="single"/>',
    ],
)
def test_however_an_action_is_declared_it_is_one(declared: str) -> None:
    assert actions(declared).has("single")
    assert not actions(declared).has("repeat")


SINGLE = '<xs:element name="single"><xs:complexType>{}</xs:complexType></xs:element>'
TYPED = '<xs:element name="single" type="t"/><xs:complexType name="t">{}</xs:complexType>'
TIMEOUT = '<xs:attribute name="timeout"/>'
GROUP = f'<xs:attributeGroup name="g">{TIMEOUT}</xs:attributeGroup>'
ACT = '<xs:element name="act">{}<xs:element name="single"/>{}</xs:element>'


@pytest.mark.parametrize(
    "declared",
    [
        '<!-- <xs:element name="single"/> -->',
        ACT.format("<xs:complexType><xs:sequence>", "</xs:sequence></xs:complexType>"),
        ACT.format("<xs:annotation><xs:appinfo>", "</xs:appinfo></xs:annotation>"),
        '<xs:complexType name="single"/>',
        '<element name="single"/>',
    ],
)
def test_what_only_looks_like_one_is_none(declared: str) -> None:
    assert not actions(declared).has("single")


@pytest.mark.parametrize(
    ("declared", "takes"),
    [
        (SINGLE.format('<xs:attribute use="optional" name="timeout"/>'), True),
        (TYPED.format("<xs:attributeGroup ref='g'/>") + GROUP, True),
        (TYPED.format("<xs:anyAttribute/>"), True),
        (TYPED.format("") + TIMEOUT, False),
        (SINGLE.format('<xs:attribute name="timeout" use="prohibited"/>'), False),
        (SINGLE.format(f"<xs:all>{SINGLE.format(TIMEOUT)}</xs:all>"), False),
    ],
)
def test_attributes_are_those_of_the_action_itself(declared: str, takes: bool) -> None:
    assert actions(declared).has("single", "timeout") == takes


@pytest.mark.parametrize(
    "schema",
    [
        b"",
        b"not XML",
        HEAD.encode(),
        b"<schema/>",
        OURS + b" " * MAX_SCHEMA,
        b'<!DOCTYPE xs:schema [<!ENTITY a "b">]>' + HEAD.encode() + b"</xs:schema>",
        f'<?xml version="1.0" encoding="utf-16"?><!DOCTYPE a>{HEAD}</xs:schema>'.encode("utf-16"),
        f'{HEAD}<xs:include schemaLocation="more.xsd"/></xs:schema>'.encode(),
        f'{HEAD}<xs:import namespace="a"/></xs:schema>'.encode(),
    ],
    ids=["empty", "text", "cut off", "no schema", "large", "doctype", "doctype in utf-16", "include", "import"],
)
def test_a_schema_that_answers_can_not_be_held_to_rules_nothing_out(schema: bytes) -> None:
    assert Actions(schema).has("single", "timeout")


def test_a_hostile_schema_costs_little() -> None:
    link = '<xs:complexType name="t{}"><xs:attributeGroup ref="t{}"/></xs:complexType>'
    types = "".join(link.format(n, n + 1) for n in range(9_000))
    begin = time.process_time()
    assert not actions(f'<xs:element name="single" type="t0"/>{types}{link.format(9_000, 0)}').has("single", "timeout")
    assert actions("<xs:element>" * 80_000).has("single"), "nested deeper than a parser goes"
    assert time.process_time() - begin < 2
