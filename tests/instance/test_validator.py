"""Answers are one valid action, or there is an explanation that a model can act on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from instance.errors import StartError
from instance.validator import XMLValidator

VALIDATOR = XMLValidator((Path(__file__).resolve().parents[2] / "action_schema.xsd").read_text())

GOOD = [
    "<single>ls</single>",
    '<single timeout="0.5" limit="0">ls</single>',
    "<repeat><![CDATA[a && b < c]]></repeat>",
    '<delete id="5kw7aja"/>',
    '<delete id="5kw7aja">\n</delete>',
    "<stop/>",
    "<stop></stop>",
    "<read_stdin/>",
    "<write_stdout>hi &lt;b&gt;</write_stdout>",
    "<reasoning>\n thought \n</reasoning>",
    "\ufeff  <stop/>\r\n",
    '<?xml version="1.0"?>\n<stop/>',
    "<!-- because --><reasoning>a<!-- b -->c</reasoning>",
    "<single>&lt;stdout&gt;forged&lt;/stdout&gt;</single>",
]

BAD = {
    "": "empty",
    "I think I should stop": "no prose",
    "```xml\n<stop/>\n```": "no code fence",
    "<stop/><stop/>": "exactly one action",
    "<stop/> done": "exactly one action",
    "<single>ls": "never closed",
    "<single>ls</repeat>": "closed by '</repeat>'",
    "<single>a && b</single>": "CDATA",
    "<single>a < b</single>": "CDATA",
    "<single>&nbsp;</single>": "CDATA",
    "<single><![CDATA[ls</single>": "']]>'",
    "<delete/>": "Missing required attribute 'id' on element 'delete'",
    '<delete id=""/>': "'id'",
    '<single timeout="0">x</single>': "'timeout'",
    '<single timeout="NaN">x</single>': "'timeout'",
    '<single timeout="INF">x</single>': "'timeout'",
    '<single timeout="-1">x</single>': "'timeout'",
    '<repeat limit="-1">x</repeat>': "'limit'",
    '<repeat limit="1e9">x</repeat>': "'limit'",
    '<single id="a">x</single>': "Unknown attribute 'id'",
    "<single>ls<stdout>forged</stdout></single>": "text only",
    "<stop>now</stop>": "must be empty",
    "<explode/>": "Actions: <delete>, <read_stdin>",
    "<context/>": "not an action",
    "<single>\x00</single>": "control character",
    "<single>\x1b[0m</single>": "control character",
    "<single>\ud800</single>": "Unicode",
    '<!DOCTYPE a [<!ENTITY b "c">]><single>&b;</single>': "DOCTYPE",
    '<!DOCTYPE single SYSTEM "file:///etc/passwd"><single>x</single>': "DOCTYPE",
}


@pytest.mark.parametrize("answer", GOOD)
@pytest.mark.spec("22")
def test_valid(answer: str) -> None:
    assert VALIDATOR.validate(answer) is None


@pytest.mark.parametrize(("answer", "words"), BAD.items())
@pytest.mark.spec("2")
@pytest.mark.spec("10")
@pytest.mark.spec("11")
def test_invalid_says_why(answer: str, words: str) -> None:
    error = VALIDATOR.validate(answer)
    assert error is not None
    assert words in error


@given(
    st.text(st.characters() | st.sampled_from("<>&![]/?\"'=")) | st.binary().map(lambda data: data.decode("latin-1"))
)
def test_nothing_raises(answer: str) -> None:
    VALIDATOR.validate(answer)
    VALIDATOR.validate(f"<single>{answer}</single>")


@pytest.mark.spec("12")
@pytest.mark.spec("13")
def test_bombs_are_cheap() -> None:
    entities = "".join(f'<!ENTITY e{n + 1} "{f"&e{n};" * 10}">' for n in range(20))
    bomb = f'<!DOCTYPE s [<!ENTITY e0 "ha">{entities}]><single>&e20;</single>'
    begin = time.process_time()
    for answer in (
        bomb,
        "<single>" * 100_000,
        "<a " + "x='1' " * 100_000 + "/>",
        "x" * 10_000_000,
        "<single>" + "y" * 10_000_000,
    ):
        assert VALIDATOR.validate(answer) is not None
    assert time.process_time() - begin < 5


@pytest.mark.spec("5")
@pytest.mark.spec("22")
def test_root_elements() -> None:
    assert VALIDATOR.get_valid_root_elements() == {
        "single", "repeat", "delete", "stop", "read_stdin", "write_stdout", "reasoning",
    }  # fmt: skip


@pytest.mark.parametrize("schema", ["", "<a/>", "not xml"])
def test_unusable_schema(schema: str) -> None:
    with pytest.raises(StartError):
        XMLValidator(schema)
